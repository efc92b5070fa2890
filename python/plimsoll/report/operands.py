"""Figures of each operand's numbers: headroom as a heat map, amax and scale as curves."""

from __future__ import annotations

import re
from typing import Any

from plimsoll.report.runs import Run
from plimsoll.report.style import Figure, axis, colour, layout, log_axis

WIDE = ("fp32", "bf16")  # formats with FP32's range: a scale of 1, and headroom without end
ROLES = ("input", "weight", "grad_output", "output", "grad_input")
DASHES = {"input": "solid", "weight": "dash", "grad_output": "dot", "output": "dashdot", "grad_input": "longdash"}
MOST_COLUMNS = 400  # of a heat map

Slots = dict[str, dict[str, Any]]


def natural(name: str) -> list[Any]:
    """Key that sorts numbers in a name by their value."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _thinned(run: Run) -> list[tuple[int, Slots]]:
    recorded = run.recorded()
    return recorded[:: -(-len(recorded) // MOST_COLUMNS) or 1]


def _layers(runs: list[Run], role: str | None = None) -> list[str]:
    """By name, numbers in it by their value."""
    names = {name for run in runs for _, slots in run.recorded() for name in slots}
    found = {name.rpartition("/")[0] for name in names if role is None or name.rpartition("/")[2] == role}
    return sorted(found, key=natural)


def _is_scaled(record: dict[str, Any]) -> bool:
    return record.get("format") not in WIDE


def _headroom(run: Run, role: str) -> Figure | None:
    recorded = _thinned(run)
    layers = [
        layer
        for layer in _layers([run], role)
        if any(_is_scaled(slots[f"{layer}/{role}"]) for _, slots in recorded if f"{layer}/{role}" in slots)
    ]
    if not layers:
        return None
    rows = [[slots.get(f"{layer}/{role}", {}).get("headroom_bits") for _, slots in recorded] for layer in layers]
    heat = {
        "type": "heatmap",
        "x": [step for step, _ in recorded],
        "y": layers,
        "z": rows,
        "zmin": -2,
        "zmax": 6,
        "colorscale": [[0, "#b2182b"], [0.25, "#f7f7f7"], [1, "#2166ac"]],  # white at 0
        "colorbar": {"title": {"text": "bits"}},
        "hovertemplate": "%{y}<br>step %{x}: %{z:.2f} bits<extra></extra>",
    }
    height = max(220, 110 + 18 * len(layers))
    y = axis(autorange="reversed", automargin=True, type="category")
    return {"data": [heat], "layout": layout(height, xaxis=axis("step"), yaxis=y)}


def headroom(runs: list[Run]) -> dict[str, Figure]:
    """By run and role. Below 0 values saturated."""
    figures = {f"{run.label}: {role}": _headroom(run, role) for run in runs for role in ROLES}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _curves(runs: list[Run], layer: str) -> list[dict[str, Any]]:
    data = []
    for index, run in enumerate(runs):
        for role in ROLES:
            seen = [(step, slots[f"{layer}/{role}"]) for step, slots in _thinned(run) if f"{layer}/{role}" in slots]
            if not seen:
                continue
            name = f"{run.label}, {role}"
            shared: dict[str, object] = {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "legendgroup": name,
                "line": {"color": colour(index), "dash": DASHES[role], "width": 1.8},
                "x": [step for step, _ in seen],
                "hovertemplate": "step %{x}: %{y:.4g}",
            }
            # A logarithm has no place for 0.
            data.append({**shared, "y": [record.get("amax") or None for _, record in seen]})
            if any(_is_scaled(record) for _, record in seen):
                scales = [record.get("scale") or None for _, record in seen]
                data.append({**shared, "y": scales, "yaxis": "y2", "showlegend": False})
    return data


def histories(runs: list[Run]) -> dict[str, Figure]:
    """By layer: amax above, scale below."""
    y, y2 = log_axis("amax", domain=[0.55, 1]), log_axis("scale", domain=[0, 0.45])
    shape = layout(520, xaxis=axis("step", anchor="y2"), yaxis=y, yaxis2=y2)
    return {layer: {"data": _curves(runs, layer), "layout": shape} for layer in _layers(runs)}
