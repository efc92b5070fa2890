"""A model's operators in the order in which they run, with the scales that go in and come out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plimsoll.autoscale.report import session_in

_ZERO = -(1 << 16)  # autoscale::kLargestExponent: the exponent of an exact zero


def _power(exponent: int) -> str:
    return "0" if exponent <= _ZERO else f"2^{exponent}"


@dataclass(frozen=True)
class Call:
    """Call of one operator: exponents of its scaled operands and of its scaled results."""

    op: str
    operands: list[int]
    results: list[int]

    def __str__(self) -> str:
        return f"{self.op}: {', '.join(map(_power, self.operands)) or '-'} -> {', '.join(map(_power, self.results)) or '-'}"


class Inspection:
    """Calls that ran in the scope; printed, a line for each."""

    def __init__(self, of: torch.nn.Module | torch.Tensor) -> None:
        self._session = session_in(of)
        self.calls: list[Call] = []

    def __enter__(self) -> Inspection:
        self._session.start_inspection()
        return self

    def __exit__(self, *_: object) -> None:
        self.calls = [Call(*call) for call in self._session.stop_inspection()]

    def __str__(self) -> str:
        return "\n".join(map(str, self.calls))


def inspect(of: torch.nn.Module | torch.Tensor) -> Inspection:
    """``with inspect(model) as seen: model(x)``; ``print(seen)``."""
    return Inspection(of)
