"""A loss scale from what the gradients are, instead of from the overflows that a scale too large makes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from plimsoll._arguments import check_number
from plimsoll.amp.grad_scaler import GradScaler, StepReport


class AutomaticLossScaler(GradScaler):
    """A :class:`GradScaler` that picks its scale from the histogram of the gradients' magnitudes.

    The scale is a power of two. It gives way, at once, before the gradients could overflow: it leaves `headroom` between
    their norm and the largest fp16. It grows, every `growth_interval` clean steps at most, while fp16 would flush more
    than `flushed_share` of their elements. An overflow all the same backs off as ever. Gradients that are left to torch
    have no histogram: with them it is a :class:`GradScaler`.

    Args:
        flushed_share: of the gradients' elements, those that fp16 may hold as zero or subnormal.
        headroom: how many times the gradients' norm may grow from one step to the next.
        device, init_scale, backoff_factor, growth_interval, enabled, options: as :class:`GradScaler`'s.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_interval: int = 20,
        enabled: bool = True,
        *,
        flushed_share: float = 2.0**-10,
        headroom: float = 8.0,
        **options: Any,
    ) -> None:
        where = "AutomaticLossScaler"
        flushed_share = check_number(where, "flushed_share", flushed_share)
        headroom = check_number(where, "headroom", headroom)
        if not (0 <= flushed_share <= 1 and 0 < headroom < math.inf):
            raise ValueError(
                f"{where}: expected flushed_share in [0, 1] and headroom that is finite and > 0, got {flushed_share} and {headroom}"
            )
        super().__init__(device, init_scale, 2.0, backoff_factor, growth_interval, enabled, **options)
        self._flushed_share, self._headroom = flushed_share, headroom
        self._seen: dict[int, tuple[torch.Tensor, float]] = {}  # histogram and norm of optimizers, by their id()

    def _observe(self, optimizer: torch.optim.Optimizer, report: StepReport, histogram: torch.Tensor) -> None:
        super()._observe(optimizer, report, histogram)
        self._seen[id(optimizer)] = histogram, report.grad_norm

    def _evidence(self, optimizers: Iterable[int]) -> dict[str, Any]:
        seen = [self._seen[each] for each in optimizers if each in self._seen]
        if not seen:
            return {}
        return {
            "histogram": torch.stack([histogram for histogram, _ in seen]).sum(0),
            "grad_norm": max(norm for _, norm in seen),
            "flushed_share": self._flushed_share,
            "headroom": self._headroom,
        }

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)
        self._seen.clear()
