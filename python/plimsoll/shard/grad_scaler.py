"""Loss scaling where each rank has a part of the gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from plimsoll.amp.grad_scaler import GradScaler, StepReport
from plimsoll.shard.ranks import ranks_of


class ShardedGradScaler(GradScaler):
    """A :class:`plimsoll.amp.GradScaler` for gradients of which each rank has a part, those of ShardedDataParallel or
    FullyShardedDataParallel: where one rank alone finds Inf or NaN, all skip, and the scales of all have the same bits.

    ``unscale_`` and ``step`` are collectives, one each. ``max_norm`` is of the gradients of all ranks together, and so is the
    norm that ``last_report`` tells.

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
        self._ranks = ranks_of(process_group)
        self.group = self._ranks.group
        self._calls = 0  # of the collective, which all ranks count alike

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        max_norm, self._max_norm = self._max_norm, None
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)
        mine = self._reports.get(optimizer) if found else None
        here = any(value.item() > 0 for value in found.values())
        norm = self._agree(here, mine.grad_norm if mine else 0.0, bool(found))
        report = mine or StepReport(0.0, 1.0, 0, None, 0.0)
        if norm is None:
            first = report.first_non_finite or "a parameter of another rank"
            report = replace(report, grad_norm=math.inf, non_finite=max(1, report.non_finite), first_non_finite=first)
        else:
            clip = 1.0 if max_norm is None else torch.ops.plimsoll.clip_factor(max_norm=float(max_norm), grad_norm=norm)
            report = replace(report, grad_norm=norm, clip_factor=clip)
            if clip < 1:
                self._scale_gradients(optimizer, clip)
        self._reports.set(optimizer, report)
        found_inf.fill_(float(report.skipped))
        return {found_inf.device: found_inf}

    def _agree(self, found: bool, norm: float, any_gradient: bool) -> float | None:
        """The norm of all ranks' gradients; None where one of them found what is not finite. Packed as one MAX, in which each
        rank has a place for its norm."""
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self._calls += 1
        packed = torch.zeros(4 + size, dtype=torch.float64)
        packed[:4] = torch.tensor([float(found), float(any_gradient), float(self._calls), -float(self._calls)])
        packed[4 + rank] = 0.0 if found else norm
        dist.all_reduce(packed, dist.ReduceOp.MAX, group=self.group)
        if packed[2] != -packed[3]:
            raise RuntimeError(
                "ShardedGradScaler: expected unscale_() and step() as often on each rank, got call "
                f"{self._calls} here and {int(-packed[3])} to {int(packed[2])} on all"
            )
        if packed[1] == 0:
            raise RuntimeError(
                "ShardedGradScaler: expected a gradient on one rank at least; call backward() on scale(loss) first"
            )
        return None if packed[0] > 0 else packed[4:].square().sum().sqrt().item()

    @staticmethod
    def _scale_gradients(optimizer: torch.optim.Optimizer, factor: float) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
