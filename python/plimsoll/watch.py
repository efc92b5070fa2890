"""Seeing overflow before it happens and when it does; docs/watch.md."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import torch

from plimsoll._arguments import check_flag, check_number, check_text
from plimsoll._whole_file import write_text
from plimsoll.watch_names import NamedLayers, Naming


class watch(Naming):
    """``with plimsoll.watch("trap") as w: ...; print(w.report())``

    mode: "off", "guard" (amaxes that cost nothing), "count" (over- and underflow), "trap" (the processor's overflow
    exceptions) or "shadow" (again in FP32). Holds for the thread that enters it; what it has seen stays after it. With
    stops=True the layer that first makes Inf or NaN raises RuntimeError with the report.

    Layers of plimsoll.pytorch are called by their `name`, or their path in the outermost module that is called. Products, norms
    and softmaxes of torch are called by the path of the module that runs them.
    """

    def __init__(self, mode: str = "guard", *, warn_bits: float = 2.0, stops: bool = False) -> None:
        check_text("watch", "mode", mode)
        if not math.isfinite(check_number("watch", "warn_bits", warn_bits)):
            raise ValueError(f"watch: expected warn_bits that is finite, got {warn_bits}")
        check_flag("watch", "stops", stops)
        self.mode = mode
        self._watch = torch.ops.plimsoll.watch_session(mode=mode, warn_bits=float(warn_bits), stops=stops)

    def _open(self) -> None:
        names = None if self.mode == "off" else NamedLayers()
        self._watch.enter(self._owner)
        self._keep(names)

    def _is_in_force(self) -> bool:
        return bool(self._watch.is_in_force())

    def report(self) -> str:
        """One block for people: the incidents, then the results with the least headroom."""
        return str(self._watch.text())

    @property
    def records(self) -> list[dict[str, Any]]:
        """Records of each operand and result, by name: amax, headroom_bits, non_finite, counts."""
        return [line for line in self._lines() if "name" in line]

    @property
    def incidents(self) -> list[dict[str, Any]]:
        """The ops that made Inf or NaN of finite operands, the first to do so first."""
        return [line for line in self._lines() if "incident" in line]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Records and incidents as JSON lines."""
        write_text(path, self._watch.json_lines())

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._watch.json_lines().splitlines()]


_switched_on: list[watch] = []


def enable_floating_point_exceptions(enabled: bool = True) -> watch | None:
    """PopTorch's switch: from here on this thread is watched in mode "trap", and the first overflow raises.

    Returns the watch; with False the one that ends, if there is one.
    """
    check_flag("enable_floating_point_exceptions", "enabled", enabled)
    if enabled and not _switched_on:
        _switched_on.append(watch("trap", stops=True).__enter__())
        return _switched_on[0]
    if not enabled and _switched_on:
        ended = _switched_on.pop()
        ended.__exit__(None, None, None)
        return ended
    return _switched_on[0] if _switched_on else None
