"""torch's forward-mode differentiation looks into the memory of tensors, which scaled ones have none of."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.autograd.forward_ad as forward_ad

from plimsoll.autoscale.tensors import forward_mode_error, is_scaled

_make_plain_dual: Callable[..., torch.Tensor] = forward_ad.make_dual


def _make_dual(tensor: torch.Tensor, tangent: torch.Tensor, *, level: int | None = None) -> torch.Tensor:
    if is_scaled(tensor) or is_scaled(tangent):
        raise forward_mode_error()
    return _make_plain_dual(tensor, tangent, level=level)


def install() -> None:
    """For the whole process: torch has no hook for one kind of tensor."""
    forward_ad.make_dual = _make_dual
