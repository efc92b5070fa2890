"""print(x) of a scaled tensor: torch prints the memory of a tensor, and a scaled one's is not its value."""

from __future__ import annotations

from collections.abc import Callable

import torch

from plimsoll.autoscale.tensors import get_data_scale, is_scaled, value

_print_plain: Callable[..., str] = torch.Tensor.__repr__


def _print(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
    if not is_scaled(self):
        return _print_plain(self, tensor_contents=tensor_contents)
    data, scale = get_data_scale(self)
    shown = f"of {list(scale.shape)}" if isinstance(scale, torch.Tensor) else f"{scale:g}"
    return f"{_print_plain(value(self), tensor_contents=tensor_contents)[:-1]}, data={data.dtype}, scale={shown})"


def install() -> None:
    """For the whole process: torch has no hook for one kind of tensor."""
    torch.Tensor.__repr__ = _print  # type: ignore[assignment, method-assign]
