"""Operators that ran on scaled tensors, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from plimsoll.autoscale.loss_scaling import scaler_of
from plimsoll.autoscale.session import remembered, session_of
from plimsoll.autoscale.tensors import is_scaled


@dataclass(frozen=True)
class OpCalls:
    """Calls of one operator."""

    op: str
    storage: int  # by its rule, in the format of the data: their bounds say that nothing overflows
    wide: int  # by its rule, in FP32
    codes: int  # a product of codes
    fallback: int  # without a rule: on the values in FP32, the result's scale measured

    @property
    def calls(self) -> int:
        return self.storage + self.wide + self.codes + self.fallback


@dataclass(frozen=True)
class Report:
    """Printed, it is a table."""

    ops: list[OpCalls]
    elements: int = 0  # of results, other than zeros, where counts_range was asked for
    overflowed: int = 0  # of these, those that were finite until they were rounded
    small: int = 0  # and those that became zero or subnormal
    skipped_steps: int = 0  # of optimizers, by the loss scale of autoscale()'s policy

    @property
    def out_of_range_share(self) -> float:
        return (self.overflowed + self.small) / max(1, self.elements)

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.ops)

    @property
    def fallback_share(self) -> float:
        return sum(row.fallback for row in self.ops) / max(1, self.calls)

    @property
    def without_rule(self) -> list[str]:
        return [row.op for row in self.ops if row.fallback]

    def __str__(self) -> str:
        width = max((len(row.op) for row in self.ops), default=2)
        lines = [f"{'op':{width}}  storage     wide    codes  fallback"]
        lines += [f"{row.op:{width}}  {row.storage:7}  {row.wide:7}  {row.codes:7}  {row.fallback:8}" for row in self.ops]
        lines.append(f"{self.calls} calls, {100 * self.fallback_share:.1f} % without a rule")
        if self.elements:
            shares = [100 * count / self.elements for count in (self.overflowed, self.small)]
            lines.append(f"{shares[0]:.3g} % of elements overflowed, {shares[1]:.3g} % lost bits or became zero")
        if self.skipped_steps:
            lines.append(f"{self.skipped_steps} steps skipped: gradients were not finite")
        return "\n".join(lines)


def session_in(of: torch.nn.Module | torch.Tensor) -> Any:
    """Session of a scaled tensor, or of a module: that of autoscale(), else of its parameters."""
    session = None if isinstance(of, torch.Tensor) else remembered(of)
    if session is not None:
        return session
    tensors = [of] if isinstance(of, torch.Tensor) else of.parameters()
    for tensor in tensors:
        if is_scaled(tensor):
            return session_of(tensor)
    raise TypeError("report: expected a scaled tensor, or a module that autoscale() returned, got neither")


def report(of: torch.nn.Module | torch.Tensor, *, clear: bool = False) -> Report:
    """Calls so far in the session of a module or of a scaled tensor; clear: counts begin anew."""
    session = session_in(of)
    rows = [OpCalls(op, *counts) for op, counts in sorted(session.counts().items())]
    elements, overflowed, small = session.range()
    scaler = scaler_of(of) if isinstance(of, torch.nn.Module) else None
    skipped = 0 if scaler is None else scaler.skipped
    if clear:
        session.clear_counts()
        if scaler is not None:
            scaler.skipped = 0
    return Report(rows, elements, overflowed, small, skipped)
