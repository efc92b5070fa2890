"""Transformer Engine's `_extra_state`, as our buffers.

There a state is a pickle of scale_fwd [n], amax_history_fwd [length, n], scale_bwd and amax_history_bwd, with a column for
each tensor of each product: input, weight (and output) forward, gradient of the output (and of the input) backward. Its
scale quantizes; ours is the reciprocal. Histories have one layout: row 0 is being filled, then from the oldest to the
newest.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plimsoll.pytorch.restricted_pickle import load

NAME = "_extra_state"
# role: whether forward, column within those of a product.
COLUMNS = {"input": ("fwd", 0), "weight": ("fwd", 1), "grad_output": ("bwd", 0)}


def _bytes_of(state: Any) -> bytes:
    if isinstance(state, io.BytesIO):
        return state.getvalue()
    if isinstance(state, torch.Tensor) and state.dtype == torch.uint8:
        return state.cpu().numpy().tobytes()
    raise TypeError(f"expected {NAME} as bytes of a pickle (BytesIO or a tensor of uint8), got {type(state).__name__}")


def _read(state: Any) -> dict[str, Any]:
    data = b"" if state is None else _bytes_of(state)
    read = load(data) if data else None
    return read if isinstance(read, dict) else {}


def _columns(read: dict[str, Any], products: Sequence[str]) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(prefix and role, scale [1], history [length])."""
    for role, (direction, column) in COLUMNS.items():
        scale, history = read.get(f"scale_{direction}"), read.get(f"amax_history_{direction}")
        if not isinstance(scale, torch.Tensor) or not isinstance(history, torch.Tensor):
            continue
        if scale.dim() != 1 or history.dim() != 2 or history.shape[1] != scale.numel() or scale.numel() % len(products):
            raise ValueError(
                f"expected {NAME} with scale_{direction} [n] and amax_history_{direction} [length, n] of "
                f"{len(products)} products, got {list(scale.shape)} and {list(history.shape)}"
            )
        stride = scale.numel() // len(products)
        for number, prefix in enumerate(products):
            at = number * stride + column
            yield prefix + role, scale[at : at + 1].float(), history[:, at].float()


def buffers_of(state: Any, products: Sequence[str]) -> dict[str, torch.Tensor]:
    """The buffers (`input_scale`, `input_amax_history`, ...) of a module with these products (the prefixes of their
    buffers). A tensor that was never scaled there has no scale here either. {} for a state without scales."""
    buffers = {}
    for name, scale, history in _columns(_read(state), products):
        unused = scale.item() == 1 and not history.any()
        buffers[f"{name}_scale"] = torch.zeros(1) if unused else scale.reciprocal()
        buffers[f"{name}_amax_history"] = history.contiguous()
    return buffers


def drop_extra_state(state_dict: dict[str, Any], prefix: str) -> None:
    """Drops the extra states of a module that has no scales here, and of its parts."""
    for name in [name for name in state_dict if name.startswith(prefix) and name.endswith(NAME)]:
        del state_dict[name]
