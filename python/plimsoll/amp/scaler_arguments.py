"""Checks of what GradScaler is given: options, norms and states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from plimsoll._arguments import check_number, check_size, shown

_OF_THE_RULE = ("growth_factor", "backoff_factor", "growth_interval")


def check_scale(name: str, value: Any) -> float:
    scale = check_number("GradScaler", name, value)
    if not 0 <= scale < math.inf:
        raise ValueError(f"GradScaler: expected {name} that is finite and >= 0, got {value}")
    return scale


def check_bounds(min_scale: Any, max_scale: Any) -> None:
    low, high = check_number("GradScaler", "min_scale", min_scale), check_number("GradScaler", "max_scale", max_scale)
    if not 0 <= low <= high or low == math.inf:
        raise ValueError(f"GradScaler: expected 0 <= min_scale <= max_scale, got {min_scale} and {max_scale}")


def check_growth(growth_factor: Any, backoff_factor: Any, growth_interval: Any, where: str = "") -> None:
    """where: of a state; without one torch's own errors name factors on the wrong side of 1."""
    place = where or "GradScaler"
    growth, backoff = check_number(place, "growth_factor", growth_factor), check_number(place, "backoff_factor", backoff_factor)
    check_size(place, "growth_interval", growth_interval, 1)
    if math.isnan(growth) or not backoff > 0 or (where and not (growth > 1 and backoff < 1)):
        raise ValueError(f"{place}: expected growth_factor > 1 and backoff_factor in (0, 1), got {growth} and {backoff}")


def check_norm(max_norm: float | None) -> None:
    if max_norm is not None and not check_number("GradScaler", "max_norm", max_norm) >= 0:
        raise ValueError(f"GradScaler: expected max_norm >= 0, got {max_norm}")


def checked_optimizers(optimizers: Any) -> list[torch.optim.Optimizer]:
    several = isinstance(optimizers, Sequence) and not isinstance(optimizers, str)
    if not several or not all(hasattr(each, "param_groups") for each in optimizers):
        raise TypeError(f"GradScaler: expected optimizers a list of optimizers, got {shown(optimizers)}")
    for place, each in enumerate(optimizers):
        if any(each is before for before in optimizers[:place]):
            raise ValueError(f"GradScaler: expected each of the optimizers once, got number {place} before, too")
    return list(optimizers)


def _scales(count: int) -> str:
    return f"{count} scale{'s' * (count > 1)}" if count else "one scale for all"


def check_state(state: Any, count: int) -> None:
    """count: of scales that are optimizers' own; 0: one for all."""
    where = "GradScaler.load_state_dict"
    if not isinstance(state, Mapping):
        raise TypeError(f"{where}: expected a state that is a dictionary, got {shown(state)}")
    missing = [name for name in ("scale", "_growth_tracker", *_OF_THE_RULE) if name not in state]
    if missing:
        raise ValueError(f"{where}: expected {missing[0]} in the state, got {', '.join(map(str, state))}")
    for name in ("scale", "_growth_tracker", "_overflows"):
        values = state.get(name, [0] * count if count else 0)
        saved = len(values) if isinstance(values, list) else 0
        if saved != count:
            raise ValueError(f"{where}: expected {name} of {_scales(count)}, got {_scales(saved)}")
        for value in values if count else [values]:
            if name != "scale":
                check_size(where, name, value)
            elif not 0 <= check_number(where, name, value) < math.inf:
                raise ValueError(f"{where}: expected a scale that is finite and >= 0, got {value}")
    check_growth(state["growth_factor"], state["backoff_factor"], state["growth_interval"], where)
    check_size(where, "hysteresis", state.get("hysteresis", 1), 1)
