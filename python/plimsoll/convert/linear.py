"""torch.nn.Linear and Hugging Face's Conv1D, in place."""

from __future__ import annotations

import torch

import plimsoll.pytorch as te
from plimsoll.convert.swap import Converted, state_on, swap
from plimsoll.pytorch.scaled_module import ScaledModule


def _forward(module: te.Linear, x: torch.Tensor) -> torch.Tensor:
    output = te.Linear.forward(module, x)
    assert isinstance(output, torch.Tensor)  # none of them returns its bias
    return output


class ConvertedLinear(Converted, te.Linear, torch.nn.Linear):  # type: ignore[misc]  # bias may be None in both
    """Still an instance of torch.nn.Linear, and called like one."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return _forward(self, input)

    def reset_parameters(self, defer_init: bool = False) -> None:
        if not defer_init:
            torch.nn.Linear.reset_parameters(self)
        ScaledModule.reset_parameters(self, defer_init)


class ConvertedConv1D(Converted, te.Linear):
    """A linear layer that holds its weight as [in_features, out_features]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return _forward(self, x)

    def _whole_weight(self, is_first_microbatch: bool | None) -> torch.Tensor:
        return super()._whole_weight(is_first_microbatch).t()


def is_conv1d(module: torch.nn.Module) -> bool:
    """By name: transformers need not be installed."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def swap_linear(module: torch.nn.Linear) -> None:
    """module: exactly a torch.nn.Linear or a Conv1D, which has the same attributes."""
    weight = module.weight
    rows, columns = reversed(weight.shape) if is_conv1d(module) else weight.shape
    donor = te.Linear(columns, rows, bias=module.bias is not None, params_dtype=weight.dtype, device="meta")
    donor._made_with["device"] = weight.device
    donor._initializers = {}  # reset_parameters() is the original's
    to = ConvertedConv1D if is_conv1d(module) else ConvertedLinear
    swap(module, to, attributes=donor.__dict__, buffers=state_on(donor, weight.device))
