"""Plain PyTorch programs with our kernels on the CPU; docs/accelerate.md."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from plimsoll._arguments import check_flag

_ops = torch.ops.plimsoll
_printed_at_exit = False


class Acceleration:
    """The result of :func:`accelerate`: ``off()`` gives torch its own kernels back, ``report()`` says what was replaced."""

    def off(self) -> None:
        accelerate(False)

    def report(self) -> dict[str, dict[str, int]]:
        return acceleration_report()

    def __str__(self) -> str:
        return report_text()


def accelerate(on: bool = True, *, report: bool = False) -> Acceleration:
    """Operators of torch run Plimsoll's kernels on the CPU where those are faster, in the whole process; all other calls go
    where they went before. A second call changes nothing; ``accelerate(False)`` gives torch its own kernels back. With
    report=True the table of :func:`acceleration_report` is printed when the process ends.

    No other thread may run torch's operators during this call.
    """
    check_flag("accelerate", "on", on)
    check_flag("accelerate", "report", report)
    if on:
        _ops.accelerate()
    else:
        _ops.stop_acceleration()
    if report:
        _print_at_exit()
    return Acceleration()


@contextmanager
def accelerated() -> Iterator[Acceleration]:
    """``with plimsoll.accelerated() as a: ...; print(a)``: on inside, and afterwards as it was before."""
    was_on = _ops.is_accelerated()
    try:
        yield accelerate()
    finally:
        accelerate(was_on)


def acceleration_report() -> dict[str, dict[str, int]]:
    """Calls of each operator since the process began, or since :func:`reset_acceleration_report`: how many were ``replaced``,
    and how many fell through for which reason (``dtype``, ``shape``, ``strides``, ``size``, ``processor``)."""
    report: dict[str, dict[str, int]] = {}
    for op, outcome, calls in zip(*_ops.acceleration_report(), strict=True):
        report.setdefault(op, {})[outcome] = calls
    return report


def reset_acceleration_report() -> None:
    """All counts are 0 again."""
    _ops.reset_acceleration_report()


def report_text() -> str:
    """The report as a table for people."""
    rows = acceleration_report()
    if not rows:
        return "plimsoll.accelerate: no operator was called"
    outcomes = list(next(iter(rows.values())))
    lines = [f"{'operator':32}" + "".join(f"{outcome:>11}" for outcome in outcomes)]
    lines += [f"{op:32}" + "".join(f"{calls:11}" for calls in counts.values()) for op, counts in rows.items()]
    return "\n".join(lines)


def _print_at_exit() -> None:
    global _printed_at_exit
    if not _printed_at_exit:
        atexit.register(lambda: print(report_text()))
        _printed_at_exit = True
