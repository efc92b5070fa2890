"""Loss scaling where each rank has a part of the gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from plimsoll.amp.automatic_loss_scaler import AutomaticLossScaler
from plimsoll.amp.grad_scaler import GradScaler, StepReport, found_on_host
from plimsoll.shard.ranks import ranks_of

_NOTHING = StepReport(0.0, 1.0, 0, None, 0.0)
_BINS = 256  # of amp::GradientHistogram


class _OverRanks(GradScaler):
    """Findings of one rank in its gradients become those of all."""

    def _share_over(self, process_group: Any) -> None:
        self._ranks = ranks_of(process_group)
        self.group = self._ranks.group
        self._calls = 0  # of the collective, which all ranks count alike

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        max_norm, self._max_norm = self._max_norm, None
        found, seen = self._unscaled(optimizer, inv_scale, found_inf, True, None)
        mine, histogram = seen or (_NOTHING, torch.zeros(_BINS, dtype=torch.int64))
        non_finite = max(mine.non_finite, int(any(value.item() > 0 for value in found.values())))
        self._calls += 1
        gradients, all_non_finite, norm, flushed_share, histogram = torch.ops.plimsoll.share_findings(
            self._ranks.handle,
            number=self._calls,
            gradients=len(found),
            non_finite=non_finite,
            grad_norm=mine.grad_norm,
            histogram=histogram,
        )
        if gradients == 0:
            raise RuntimeError(
                "ShardedGradScaler: expected a gradient on one rank at least; call backward() on scale(loss) first"
            )
        report = replace(mine, grad_norm=norm, flushed_share=flushed_share)
        if all_non_finite > 0:
            first = mine.first_non_finite or "a parameter of another rank"
            report = replace(report, grad_norm=math.inf, non_finite=max(1, non_finite), first_non_finite=first)
        elif max_norm is not None:
            report = replace(report, clip_factor=torch.ops.plimsoll.clip_factor(max_norm=float(max_norm), grad_norm=norm))
            if report.clip_factor < 1:
                self._scale_gradients(optimizer, report.clip_factor)
        self._observe(optimizer, report, histogram)
        return found_on_host(found_inf, report.skipped)

    @staticmethod
    def _scale_gradients(optimizer: torch.optim.Optimizer, factor: float) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)


class ShardedGradScaler(_OverRanks):
    """A :class:`plimsoll.amp.GradScaler` for gradients of which each rank has a part, those of ShardedDataParallel or
    FullyShardedDataParallel: where one rank alone finds Inf or NaN, all skip, and the scales of all have the same bits.

    ``unscale_`` and ``step`` are collectives, one each. ``max_norm`` is of the gradients of all ranks together, and so are the
    norm and the flushed share that ``last_report`` tells.

    Args:
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as torch's.
        process_group: of torch.distributed; all ranks if None.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(None, init_scale, growth_factor, backoff_factor, growth_interval, enabled, **options)
        self._share_over(process_group)


class ShardedAutomaticLossScaler(_OverRanks, AutomaticLossScaler):
    """A :class:`plimsoll.amp.AutomaticLossScaler` for such gradients: the scale follows the histogram of all ranks'.

    Args:
        init_scale, backoff_factor, growth_interval, enabled, options: as AutomaticLossScaler's.
        process_group: of torch.distributed; all ranks if None.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_interval: int = 20,
        enabled: bool = True,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        AutomaticLossScaler.__init__(self, None, init_scale, backoff_factor, growth_interval, enabled, **options)
        self._share_over(process_group)
