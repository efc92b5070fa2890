"""Figures of a run that chose the format of each product (`--recipe auto`): bands of formats by step, and why they changed."""

from __future__ import annotations

from html import escape
from typing import Any

from plimsoll.report.operands import MOST_COLUMNS, natural
from plimsoll.report.runs import Run
from plimsoll.report.style import Figure, axis, layout

COLOURS = ("#9ecae1", "#3182bd", "#e6550d")  # of the narrowest format, one between, and the wide one
PRODUCTS = ("output", "grad_input", "grad_weight")
# Words for the reasons of recipe/automatic_rule.h.
REASONS = {
    "not finite": "{operand} is not finite",
    "error": "error of {operand} {error:.3g} above {bound:.3g}",
    "flushed": "share of {operand} that became zero {error:.3g} above {bound:.3g}",
    "gradient": "|q(g) - g| / |g| {error:.3g} above {bound:.3g}",
    "quiet": "quiet, mean load {error:.3g} below {bound:.3g}",
}

Change = dict[str, Any]


def _formats(run: Run) -> list[str]:
    """Formats of the ladder, the narrowest first."""
    return next((list(line["precision"]["formats"]) for line in run.steps if "precision" in line), [])


def _colours(formats: list[str]) -> list[str]:
    """The last format has the last colour."""
    return [COLOURS[min(number, len(COLOURS) - 2)] for number in range(len(formats) - 1)] + [COLOURS[-1]]


def _changes(run: Run) -> list[tuple[int, Change]]:
    """(the step that was measured, the change), in order. The next step runs in the other format."""
    return [(line["step"], change) for line in run.steps for change in line.get("precision", {}).get("changes", [])]


def _name(change: Change) -> str:
    return f"{change['layer']}/{change['product']}"


def reason_of(change: Change) -> str:
    """Why, in the words of `plimsoll train`; a reason that is none of REASONS, from another version's log, as it stands there."""
    return REASONS.get(change["reason"], "{reason}").format_map(change)


def _rows(run: Run, product: str) -> list[str]:
    recorded = {name for line in run.steps for name in line.get("precision", {}).get("products", {})}
    names = recorded | {_name(change) for _, change in _changes(run)}
    return sorted((name for name in names if name.rpartition("/")[2] == product), key=natural)


def _columns(run: Run) -> list[int]:
    """Steps to show: evenly spread ones, and those around each change."""
    steps = [line["step"] for line in run.steps]
    chosen = set(steps[:: -(-len(steps) // MOST_COLUMNS) or 1])
    for step, _ in _changes(run):
        chosen |= {step, step + 1}
    return [step for step in steps if step in chosen]


def _band(run: Run, name: str, columns: list[int], formats: list[str]) -> tuple[list[int], list[str]]:
    """Format of the product by column, as its number on the ladder, and what a reader is told there."""
    changes = [(step, change) for step, change in _changes(run) if _name(change) == name]
    numbers, texts = [], []
    for column in columns:
        before = [(step, change) for step, change in changes if step < column]
        last = before[-1][1] if before else None
        form = str(last["to"]) if last else formats[0]
        numbers.append(formats.index(form) if form in formats else 0)
        texts.append(f"{form} since step {before[-1][0] + 1}: {reason_of(last)}" if last else f"{form} from the first step on")
    return numbers, texts


def _bands(run: Run, product: str) -> Figure | None:
    names, formats, columns = _rows(run, product), _formats(run), _columns(run)
    if not names or not formats:
        return None
    found = [_band(run, name, columns, formats) for name in names]
    last = max(len(formats) - 1, 1)
    colours = _colours(formats)
    scale = [
        [edge / len(formats), colours[number]] for number in range(len(formats)) for edge in (number, number + 1)
    ]  # one colour a format
    heat = {
        "type": "heatmap",
        "x": columns,
        "y": [name.rpartition("/")[0] for name in names],
        "z": [numbers for numbers, _ in found],
        "text": [texts for _, texts in found],
        "zmin": -0.5,
        "zmax": last + 0.5,
        "colorscale": scale,
        "colorbar": {"tickvals": list(range(len(formats))), "ticktext": formats},
        "hovertemplate": "%{y}<br>step %{x}: %{text}<extra></extra>",
    }
    height = max(220, 110 + 18 * len(names))
    y = axis(autorange="reversed", automargin=True, type="category")
    return {"data": [heat], "layout": layout(height, xaxis=axis("step"), yaxis=y)}


def _shares(run: Run) -> Figure | None:
    formats = _formats(run)
    if not formats:
        return None
    lines = [line for line in run.steps if "precision" in line]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "formats",
            "name": form,
            "x": [line["step"] for line in lines],
            "y": [100 * line["precision"]["share"][number] for line in lines],
            "line": {"color": _colours(formats)[number], "width": 0},
            "hovertemplate": "step %{x}: %{y:.1f} %",
        }
        for number, form in enumerate(formats)
    ]
    return {"data": data, "layout": layout(300, xaxis=axis("step"), yaxis=axis("% of multiply-adds", range=[0, 100]))}


def bands(runs: list[Run]) -> dict[str, Figure]:
    """Figures by run: the share of the multiply-adds in each format, and for each of the three products the format of each
    layer, by step."""
    figures: dict[str, Figure | None] = {}
    for run in runs:
        figures[f"{run.label}: multiply-adds"] = _shares(run)
        figures |= {f"{run.label}: {product}": _bands(run, product) for product in PRODUCTS}
    return {name: figure for name, figure in figures.items() if figure is not None}


def change_table(runs: list[Run]) -> str:
    """HTML with a row for each change; empty where no run chose formats."""
    rows = [
        (run.label, str(step), _name(change), f"{change['from']} → {change['to']}", reason_of(change))
        for run in runs
        for step, change in _changes(run)
    ]
    if not rows:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("run", "after step", "product", "format", "why"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
