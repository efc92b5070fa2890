"""The runs in figures, a row each, as HTML."""

from __future__ import annotations

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
    last = run.series("val_loss")[1]
    return run.summary.get("final_val_loss") or (last[-1] if last else None)


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
        difference = None if loss is None or not reference else 100 * (loss / reference - 1)
        cells = (
            run.label,
            str(run.summary.get("recipe", "–")),
            str(run.steps[-1]["step"]) + ("" if run.summary else ", not finished"),
            _number(run.summary.get("parameters"), ","),
            _number(loss, ".4f"),
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
