"""Reads what `plimsoll train` and `plimsoll compare` log: one JSON object a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll._files import read_text

LOG = "train.jsonl"
NUMBERS = ("final_val_loss", "parameters", "tokens_per_s", "saved_activation_bytes", "peak_rss_bytes", "headroom_bits")
SLOT_NUMBERS = ("amax", "scale", "headroom_bits")
CHANGE_TEXTS = ("layer", "product", "from", "to", "reason", "operand")
FIRST = ("fp32", "bf16", "fp16")  # of the runs in a directory; the others by name

RunPath = str | os.PathLike[str]


@dataclass
class Run:
    """steps: the lines of steps, in order; each has "step" and "loss". summary: the last line, of a finished run."""

    label: str
    path: Path
    steps: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values, where there is one."""
        found = [(line["step"], line[name]) for line in self.steps if isinstance(line.get(name), (int, float))]
        return [step for step, _ in found], [value for _, value in found]

    @property
    def is_fp32(self) -> bool:
        return self.summary.get("recipe") == "fp32" or self.label.rpartition("/")[2] == "fp32"

    def recorded(self) -> list[tuple[int, dict[str, dict[str, Any]]]]:
        """(step, {operand: {"format", "amax", "scale", "headroom_bits", ...}}) of the steps that logged them."""
        return [(line["step"], line["slots"]) for line in self.steps if isinstance(line.get("slots"), dict)]


def _fail(path: Path, expected: str, got: str) -> ValueError:
    return ValueError(f"report: {path}: expected {expected}, got {got}")


def _excerpt(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and -1e300 < value < 1e300)


def _is_record(slot: Any) -> bool:
    return isinstance(slot, dict) and all(_is_number_or_none(slot.get(name)) for name in SLOT_NUMBERS)


def _is_change(change: Any) -> bool:
    return (
        isinstance(change, dict)
        and all(isinstance(change.get(name), str) for name in CHANGE_TEXTS)
        and all(_is_number_or_none(change.get(name)) and change.get(name) is not None for name in ("error", "bound"))
    )


def _is_precision(value: Any) -> bool:
    """Whether it is what a step under `--recipe auto` logs of its formats."""
    if not isinstance(value, dict):
        return False
    formats, share, changes = value.get("formats"), value.get("share"), value.get("changes", [])
    products = value.get("products", {})
    return (
        isinstance(formats, list)
        and all(isinstance(form, str) for form in formats)
        and isinstance(share, list)
        and len(share) == len(formats)
        and all(isinstance(part, (int, float)) for part in share)
        and isinstance(changes, list)
        and all(map(_is_change, changes))
        and isinstance(products, dict)
    )


def _finite(text: str) -> float | None:
    """None for a number beyond what a float holds."""
    value = float(text)
    return value if math.isfinite(value) else None


def _parse_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=lambda _name: None, parse_float=_finite)  # NaN and Infinity are gaps
    except (ValueError, RecursionError):
        raise _fail(
            path, f"a JSON object in line {number}", f"{_excerpt(line)} (cut off? `plimsoll train --resume` mends it)"
        ) from None
    if not isinstance(value, dict):
        raise _fail(path, f"a JSON object in line {number}", _excerpt(line))
    is_step = isinstance(value.get("step"), int) and (
        value.get("loss", "") is None or isinstance(value.get("loss"), (int, float))
    )
    if not is_step and "final_val_loss" not in value:
        raise _fail(path, f'"step" and "loss", or the summary of a run, in line {number}', _excerpt(line))
    if not all(_is_number_or_none(value.get(name)) for name in NUMBERS):
        raise _fail(path, f"numbers as {', '.join(NUMBERS)} in line {number}", _excerpt(line))
    slots = value.get("slots")
    if isinstance(slots, dict) and not all(map(_is_record, slots.values())):
        raise _fail(path, f"slots of numbers in line {number}", _excerpt(line))
    if is_step and "precision" in value and not _is_precision(value["precision"]):
        raise _fail(path, f'formats as "precision" in line {number}', _excerpt(line))
    return value


def read_log(path: Path, label: str) -> Run:
    run = Run(label, path)
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise _fail(path, "JSON lines", "a file that is not text") from None
    for number, line in enumerate(text.splitlines(), 1):
        value = _parse_line(path, number, line)
        if "step" in value:
            run.steps.append(value)
        else:
            run.summary = value
    if not run.steps:
        raise _fail(path, "one step or more", "an empty log" if not text.strip() else "none")
    return run


def _logs_of(path: Path) -> list[Path]:
    """A log, that of a run's directory, or those of a comparison's."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"report: {path}: expected a log or the directory of a run, found nothing")
    if (path / LOG).is_file():
        return [path / LOG]
    logs = sorted(
        path.glob(f"*/{LOG}"), key=lambda log: (FIRST.index(log.parent.name) if log.parent.name in FIRST else len(FIRST), log)
    )
    if not logs:
        raise FileNotFoundError(f"report: {path}: expected {LOG} in it, or in directories in it, found none")
    return logs


def _labels(logs: list[Path]) -> list[str]:
    """The directory's name, or the file's if it has one of its own; as much of the path as tells the logs apart."""
    parts = [(log.resolve().parent if log.name == LOG else log.resolve().with_suffix("")).parts for log in logs]
    count = 1
    while count < max(len(part) for part in parts) and len({part[-count:] for part in parts}) < len(logs):
        count += 1
    return ["/".join(part[-count:]) for part in parts]


def read_runs(paths: RunPath | Iterable[RunPath]) -> list[Run]:
    """Raises ValueError or FileNotFoundError: the file, what was expected and what came."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    logs = list(dict.fromkeys(log for path in given for log in _logs_of(Path(path))))
    if not logs:
        raise ValueError("report: expected one run or more, got none")
    return [read_log(log, label) for log, label in zip(logs, _labels(logs), strict=True)]
