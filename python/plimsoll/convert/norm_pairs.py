"""A norm and the linear layer that alone reads what it makes, as one op."""

from __future__ import annotations

from typing import Any

import torch

import plimsoll.pytorch as te
from plimsoll.convert.linear import ConvertedConv1D, ConvertedLinear
from plimsoll.convert.swap import Converted


class _Pair:
    """A norm and a linear layer, as LayerNormLinear.run() reads itself."""

    zero_centered_gamma = False

    def __init__(self, norm: Any, linear: Any) -> None:
        self._linear = linear
        self._kind = "layernorm" if isinstance(norm, torch.nn.LayerNorm) else "rmsnorm"
        self.layer_norm_weight = norm.weight
        self.layer_norm_bias = norm.bias if self._kind == "layernorm" else None
        self.eps = norm.eps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._linear, name)


def is_watched(module: torch.nn.Module) -> bool:
    """Somebody wants to see what goes into it or comes out of it."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def is_pair(norm: torch.nn.Module, linear: torch.nn.Module) -> bool:
    """Whether linear(norm(x)) is what the fused op computes, and nobody looks in between."""
    if type(norm) is not torch.nn.LayerNorm and type(norm) is not torch.nn.RMSNorm:
        return False
    if not isinstance(linear, (ConvertedLinear, ConvertedConv1D)):
        return False
    affine = norm.weight is not None and norm.eps is not None and len(norm.normalized_shape) == 1
    return affine and not is_watched(norm) and not is_watched(linear)


def run_pair(norm: Any, linear: Any, x: torch.Tensor) -> torch.Tensor:
    """linear(norm(x))"""
    return te.LayerNormLinear.run(_Pair(norm, linear), x)[0]  # type: ignore[arg-type]


class ConvertedSequential(Converted, torch.nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        modules = list(self)
        place = 0
        while place < len(modules):
            if place + 1 < len(modules) and is_pair(modules[place], modules[place + 1]):
                input = run_pair(modules[place], modules[place + 1], input)
                place += 2
            else:
                input = modules[place](input)
                place += 1
        return input
