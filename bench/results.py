"""Reads what plimsoll_bench writes: Google Benchmark's JSON with a rate, a limit and a share for each benchmark."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    name: str  # kernel/case/size
    rate: float
    limit: float
    unit: str  # GB/s or GFLOP/s, of both
    share: float  # percent


@dataclass(frozen=True)
class Results:
    context: dict[str, Any]
    by_name: dict[str, Result]


def load(path):
    """Raises ValueError, with a line that names the file, if it is of another kind."""
    try:
        document = json.loads(Path(path).read_text())
        by_name = {}
        for row in document["benchmarks"]:
            name = row["name"].removesuffix("/manual_time")
            unit = next(unit for unit in ("GB/s", "GFLOP/s") if unit in row)
            by_name[name] = Result(name, row[unit], row["limit"], unit, row["share_%"])
        return Results(document["context"], by_name)
    except (KeyError, TypeError, StopIteration, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: expected the JSON that plimsoll_bench writes, got none ({error!r})") from error
