"""The runs in figures, a row each, as HTML."""

from __future__ import annotations

import math
from html import escape

from plimsoll.report.curves import megabytes, tokens_per_s
from plimsoll.report.runs import Run

HEAD = (
    "run",
    "recipe",
    "steps",
    "parameters",
    "validation loss",
    "vs fp32",
    "tokens/s",
    "saved MB",
    "peak MB",
    "warnings",
    "lowest headroom",
)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _validation_loss(run: Run) -> float | None:
    """That of the end; of a run that goes on, the last one. NaN: the run diverged."""
    if not run.summary:
        last = run.series("val_loss")[1]
        return last[-1] if last else None
    loss: float | None = run.summary.get("final_val_loss")
    return math.nan if loss is None and run.summary.get("diverged") else loss


def _loss_cell(loss: float | None) -> str:
    return "NaN" if loss is not None and math.isnan(loss) else _number(loss, ".4f")


def _difference(loss: float | None, reference: float | None) -> float | None:
    """In percent; None where one of the two is no number, or the reference 0."""
    if loss is None or not reference or math.isnan(loss) or math.isnan(reference):
        return None
    return 100 * (loss / reference - 1)


def _lowest_headroom(run: Run) -> str:
    lines = [line for line in run.steps if isinstance(line.get("headroom_bits"), (int, float))]
    if not lines:
        return "–"
    lowest = min(lines, key=lambda line: line["headroom_bits"])
    bits = round(lowest["headroom_bits"], 2) + 0.0  # without -0
    return f"{bits:.2f} bits, step {lowest['step']}, {lowest.get('headroom_slot', '')}"


def table(runs: list[Run]) -> str:
    reference = next((_validation_loss(run) for run in runs if run.is_fp32), None)
    rows = []
    for run in runs:
        loss = _validation_loss(run)
        difference = _difference(loss, reference)
        cells = (
            run.label,
            str(run.summary.get("recipe", "–")),
            str(run.steps[-1]["step"]) + ("" if run.summary else ", not finished"),
            _number(run.summary.get("parameters"), ","),
            _loss_cell(loss),
            _number(difference, "+.2f") + ("" if difference is None else " %"),
            _number(tokens_per_s(run), ",.0f"),
            _number(megabytes(run, "saved_activation_bytes"), ".1f"),
            _number(megabytes(run, "peak_rss_bytes"), ".0f"),
            str(sum("warning" in line for line in run.steps)),
            _lowest_headroom(run),
        )
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
