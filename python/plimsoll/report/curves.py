"""Loss curves, and bars of speed and memory."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from plimsoll.report.runs import Run
from plimsoll.report.style import Figure, axis, colour, layout

MOST_POINTS = 2000  # of a curve


def _thin(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Means of as many neighbours as it takes."""
    size = -(-len(steps) // MOST_POINTS)
    if size <= 1:
        return steps, values
    begins = range(0, len(steps), size)
    return [steps[min(begin + size, len(steps)) - 1] for begin in begins], [
        fmean(values[begin : begin + size]) for begin in begins
    ]


def losses(runs: list[Run]) -> Figure:
    data: list[dict[str, Any]] = []
    for index, run in enumerate(runs):
        shared = {"type": "scatter", "legendgroup": run.label, "hovertemplate": "%{y:.4f}"}
        steps, values = _thin(*run.series("loss"))
        line = {"color": colour(index), "width": 1.2}
        data.append({**shared, "name": run.label, "x": steps, "y": values, "mode": "lines", "line": line, "opacity": 0.55})
        steps, values = run.series("val_loss")
        if values:
            line = {"color": colour(index), "width": 2.5}
            data.append(
                {**shared, "name": f"{run.label}, validation", "x": steps, "y": values, "mode": "lines+markers", "line": line}
            )
    return {"data": data, "layout": layout(430, xaxis=axis("step"), yaxis=axis("loss, nats"), hovermode="x unified")}


def differences(runs: list[Run], reference: Run) -> Figure:
    """Differences of the loss from the reference's at the same step."""
    theirs = dict(zip(*reference.series("loss"), strict=True))
    data = []
    for index, run in enumerate(runs):
        if run is not reference:
            ours = [(step, loss - theirs[step]) for step, loss in zip(*run.series("loss"), strict=True) if step in theirs]
            steps, values = _thin([step for step, _ in ours], [value for _, value in ours])
            line = {"color": colour(index), "width": 1.5}
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": run.label,
                    "x": steps,
                    "y": values,
                    "line": line,
                    "hovertemplate": "%{y:+.4f}",
                }
            )
    y = axis(f"loss less that of {reference.label}", zeroline=True, zerolinecolor="#888")
    return {"data": data, "layout": layout(430, xaxis=axis("step"), yaxis=y, hovermode="x unified", showlegend=True)}


def loss_figures(runs: list[Run]) -> dict[str, Figure]:
    figures = {"loss": losses(runs)}
    reference = next((run for run in runs if run.is_fp32), None)
    if reference is not None and len(runs) > 1:
        figures[f"difference from {reference.label}"] = differences(runs, reference)
    return figures


def tokens_per_s(run: Run) -> float | None:
    """Speed by the summary; of a run that goes on, the median so far."""
    whole: float | None = run.summary.get("tokens_per_s")
    if whole:
        return whole
    values = run.series("tokens_per_s")[1]
    return median(values) if values else None


def megabytes(run: Run, name: str) -> float | None:
    value = run.summary.get(name)
    return value / 1e6 if value else None


def bars(runs: list[Run]) -> Figure:
    panels = [
        ("tokens a second", ",.0f", [tokens_per_s(run) for run in runs]),
        ("saved for backward, MB", ",.1f", [megabytes(run, "saved_activation_bytes") for run in runs]),
        ("peak memory, MB", ",.0f", [megabytes(run, "peak_rss_bytes") for run in runs]),
    ]
    figure: Figure = {
        "data": [],
        "layout": layout(320, showlegend=False, grid={"rows": 1, "columns": 3, "pattern": "independent"}),
    }
    for number, (title, form, values) in enumerate(panels):
        suffix = str(number + 1) if number else ""
        figure["data"].append(
            {
                "type": "bar",
                "x": [run.label for run in runs],
                "y": values,
                "text": ["not finished" if value is None else format(value, form) for value in values],
                "hoverinfo": "x+text",
                "marker": {"color": [colour(index) for index in range(len(runs))]},
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
            }
        )
        figure["layout"][f"xaxis{suffix}"] = axis(title, type="category")
        figure["layout"][f"yaxis{suffix}"] = axis(rangemode="tozero")
    return figure
