"""Changes the class of a module in place, and back.

The object stays: parameters, hooks, buffers, and whatever refers to the module or to its parameters, such as an
optimizer. What the new class needs besides is added and, on the way back, taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class Before(NamedTuple):
    """State before the conversion, for restore()."""

    original: type[torch.nn.Module]
    added: tuple[str, ...]  # attributes, buffers and children


class Converted(torch.nn.Module):
    """Base of the classes that modules change to. Never constructed."""

    _before: Before


def state_on(donor: torch.nn.Module, device: torch.device) -> dict[str, torch.Tensor]:
    """The buffers of a module on the device "meta", as zeros."""
    return {name: torch.zeros_like(buffer, device=device) for name, buffer in donor.named_buffers(recurse=False)}


def swap(
    module: torch.nn.Module,
    to: type[Converted],
    *,
    attributes: Mapping[str, Any] | None = None,
    buffers: Mapping[str, torch.Tensor] | None = None,
    children: Mapping[str, torch.nn.Module] | None = None,
) -> None:
    """Attributes that the module has already are its own."""
    new = {name: value for name, value in (attributes or {}).items() if name not in module.__dict__}
    module.__dict__.update(new)
    for name, buffer in (buffers or {}).items():
        module.register_buffer(name, buffer)
    for name, child in (children or {}).items():
        module.add_module(name, child)
    module.__dict__["_before"] = Before(type(module), (*new, *(buffers or ()), *(children or ())))
    module.__class__ = to


def restore(module: Converted) -> None:
    before = module._before
    for name in (*before.added, "_before"):
        delattr(module, name)
    module.__class__ = before.original  # type: ignore[assignment]  # no Converted from here on
