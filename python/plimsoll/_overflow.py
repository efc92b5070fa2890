"""A warning for what a checkpoint holds and a narrower dtype cannot."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

_NAMED = 8  # tensors


def count_overflowed(stored: torch.Tensor, held: torch.Tensor) -> int:
    """Elements that are finite in `stored` and not in `held`, which was made from it."""
    if stored.dtype == held.dtype or not held.is_floating_point() or bool(held.isfinite().all()):
        return 0
    return int((stored.isfinite() & ~held.isfinite().to(stored.device)).sum())


def warn_of_overflow(where: str, overflowed: Iterable[tuple[str, int, torch.Tensor]], stacklevel: int = 3) -> None:
    """overflowed: name, count_overflowed() and tensor of each that was loaded. One warning for all of them, or none."""
    found = sorted((item for item in overflowed if item[1]), key=lambda item: -item[1])
    if not found:
        return
    parts = [f"{name} ({count} of {tensor.numel()}, {tensor.dtype})" for name, count, tensor in found[:_NAMED]]
    if len(found) > _NAMED:
        parts.append(f"and in {len(found) - _NAMED} more")
    total = sum(count for _, count, _ in found)
    weights = "weight is" if total == 1 else "weights are"
    warnings.warn(f"{where}: {total} {weights} beyond the dtype and became Inf: {', '.join(parts)}", stacklevel=stacklevel)
