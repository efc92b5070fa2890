"""The formats in which a model really runs; docs/audit.md."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import torch

from plimsoll._whole_file import write_text
from plimsoll.watch_names import NamedLayers, Naming


@dataclasses.dataclass(frozen=True)
class AuditOperand:
    """An operand as it was read. granularity, source and scale are "" where it has no scale."""

    name: str
    format: str
    values_of: str = ""
    granularity: str = ""
    source: str = ""
    scale: str = ""


@dataclasses.dataclass(frozen=True)
class AuditRow:
    """A product or operator of a layer: all calls with these formats. operations: two a multiply-add."""

    layer: str
    op: str
    operands: tuple[AuditOperand, ...]
    output: str
    kernel: str
    decided: str
    reason: str
    calls: int
    operations: float
    share: float


def _row(line: dict[str, Any]) -> AuditRow:
    return AuditRow(**{**line, "operands": tuple(AuditOperand(**operand) for operand in line["operands"])})


class audit(Naming):
    """``with plimsoll.audit(model) as a: model(x).sum().backward()``, then ``a.rows``

    Holds for the thread that enters it; what it has recorded stays after it, and several scopes of one object add up. Layers
    have their path in `model`, whichever part of it is called; layers of others, and all where there is no `model`, are called
    as :class:`plimsoll.watch` calls them. Products, norms, softmaxes and attentions that torch computes itself are
    listed as torch's, with their dtype.
    """

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"audit: expected a torch.nn.Module, got {type(model).__name__}")
        self._model = model
        self._audit = torch.ops.plimsoll.audit_session()

    def _open(self) -> None:
        names = NamedLayers()
        if self._model is not None:
            names.find_paths(self._model)
        self._audit.enter(self._owner)
        self._keep(names)

    def _is_in_force(self) -> bool:
        return bool(self._audit.is_in_force())

    @property
    def rows(self) -> list[AuditRow]:
        """In the order in which they first ran."""
        return [_row(json.loads(line)) for line in self._audit.json_lines().splitlines()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON lines, which `plimsoll audit --diff` compares."""
        write_text(path, self._audit.json_lines())
