"""The page: one file that needs no other and no network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from plimsoll._whole_file import write_text
from plimsoll.report.checkpoints import read_checkpoint
from plimsoll.report.curves import bars, loss_figures
from plimsoll.report.operands import headroom, histories
from plimsoll.report.precision import bands, change_table
from plimsoll.report.runs import Run, RunPath, read_runs
from plimsoll.report.table import table

NO_OPERANDS = "No operand was recorded: train with --log-scales N."


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError("report: expected the package plotly, found none; pip install plotly") from None
    return str(get_plotlyjs())


def sections(runs: list[Run]) -> list[dict[str, Any]]:
    """Title, text, and figures by name; with several a reader chooses."""
    heat, curves = headroom(runs), histories(runs)
    bits = (
        "Bits between an operand's largest value and its format's, layer by step. "
        "0: the scale fits it; red: values saturated. FP32 and BF16 are left out."
    )
    formats = bands(runs)
    chosen = {
        "title": "Formats",
        "text": "The share of the multiply-adds in each format, and the format of each product, layer by step.",
        "figures": formats,
    }
    return [
        {"title": "Loss", "text": "Of each step, and on held-out text.", "figures": loss_figures(runs)},
        {"title": "Speed and memory", "text": "Tokens a second are the median of the steps.", "figures": {"bars": bars(runs)}},
        *([chosen] if formats else []),
        {"title": "Headroom", "text": bits if heat else "No FP8 or FP16 operand was recorded.", "figures": heat},
        {"title": "Amax and scale", "text": "value = scale * code." if curves else NO_OPERANDS, "figures": curves},
    ]


def _embedded(value: Any) -> str:
    """JSON that no closing tag inside can end."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _expect_free(target: Path, template: str) -> None:
    """Raises ValueError where a page would take the place of anything but an earlier page or an empty file."""
    if not target.is_file() or target.stat().st_size == 0:
        return
    start = template.partition("$title")[0].encode()
    with target.open("rb") as file:
        if file.read(len(start)) == start:
            return
    raise ValueError(f"report: {target}: expected a new file or an earlier page of plimsoll report, got another file")


def report(runs: RunPath | Iterable[RunPath], path: RunPath = "report.html") -> Path:
    """Writes one HTML page about training runs and checkpoints, which needs no network, and returns its path.

    runs: logs of JSON lines (`plimsoll train --json FILE`), directories of runs (`--out DIR`, which holds train.jsonl), or
    of `plimsoll compare`: loss curves; speed and memory; headroom of each layer at each step; amax and scale of each
    operand. Results of `plimsoll parity --json FILE` and directories of `plimsoll gauge` and `plimsoll line`: their figures,
    and where FP16 overflows. One of these, or several. path: a new file, or an earlier page, whose place it takes. Raises
    FileNotFoundError or ValueError that names the file, what was expected and what came.
    """
    template = Path(__file__).with_name("page.html").read_text()
    target = Path(path)
    _expect_free(target, template)
    given = [Path(each) for each in ([runs] if isinstance(runs, (str, os.PathLike)) else runs)]
    found = {each: read_checkpoint(each) for each in given}
    checkpoints = [checkpoint for checkpoint in found.values() if checkpoint is not None]
    logs = [each for each in given if found[each] is None]
    read = read_runs(logs) if logs or not checkpoints else []
    title = ": ".join(
        (
            "Training runs" if not checkpoints else "Checkpoints" if not read else "Training runs and checkpoints",
            ", ".join([run.label for run in read] + [checkpoint.label for checkpoint in checkpoints]),
        )
    )
    text = Template(template).substitute(
        title=escape(title),
        table=table(read) + change_table(read) if read else "",
        checkpoints="".join(f"<section>{checkpoint.html()}</section>" for checkpoint in checkpoints),
        plotly=_plotly_script() if read else "",
        sections=_embedded(sections(read) if read else []),
    )
    write_text(target, text)
    return target
