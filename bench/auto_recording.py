"""Writes what runs under `--recipe auto` measured and decided, for the test that holds the rule against them.

    plimsoll train ... --recipe '{"name": "auto", "mean_decay": 0}' --log-scales 1 --out RUN
    .venv/bin/python bench/auto_recording.py plimsoll/recipe/automatic_recorded.json RUN...

Without decay the means in the log are those of the last measured step alone. A row is {"step" (counted from 0), "load"} of each measured step:
the largest of the operands' errors and flushed shares, as a share of its bound. A step with a change has "to" and "reason" beside, and where
the reason is a promotion's, "operand", "error" and "bound". A demotion's own load is not in the log: it gets that of the step before.
Products without changes say little: of those only the ones with the largest loads are kept.
"""

import json
import sys
from pathlib import Path
from typing import Any

KEPT = 3  # products without changes


def changes_of(line):
    """{(layer/product): change} of a step."""
    return {f"{change['layer']}/{change['product']}": change for change in line["precision"].get("changes", [])}


def rows_of(steps):
    """{product: rows}, of the lines of a log's steps."""
    rows: dict[str, list[dict[str, Any]]] = {}
    before: dict[str, tuple[float, ...]] = {}
    for line in steps:
        changes = changes_of(line)
        for name, product in line["precision"]["products"].items():
            numbers = (product["load"], product["mean_error"], product["saturated"], product["flushed"])
            change = changes.get(name)
            if change:
                promoted = change["reason"] != "quiet"
                load = change["error"] / change["bound"] if promoted and change["bound"] else before.get(name, (0.0,))[0]
                row = {"step": line["step"] - 1, "load": load, "to": change["to"], "reason": change["reason"]}
                if promoted:
                    row |= {key: change[key] for key in ("operand", "error", "bound")}
                rows.setdefault(name, []).append(row)
            elif numbers != before.get(name) and any(numbers):
                rows.setdefault(name, []).append({"step": line["step"] - 1, "load": product["load"]})
            before[name] = numbers
    return rows


def recording(log):
    steps, summary = [line for line in log if "loss" in line], log[-1]
    recipe = json.loads(summary["recipe"])
    if recipe.get("mean_decay") != 0:
        raise ValueError(f"auto_recording: expected a recipe with mean_decay 0, got {summary['recipe']}")
    rows = rows_of(steps)
    changed = {name for name, of_product in rows.items() if any("to" in row for row in of_product)}
    quiet = sorted(set(rows) - changed, key=lambda name: -max(row["load"] for row in rows[name]))
    return {
        "recipe": recipe,
        "steps": summary["steps"],
        "formats": summary["precision"]["formats"],
        "products": {name: rows[name] for name in sorted(changed) + quiet[:KEPT]},
    }


def written(runs):
    """JSON with one product a line."""
    texts = []
    for run in runs:
        products = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rows)}" for name, rows in run["products"].items())
        head = {key: value for key, value in run.items() if key != "products"}
        texts.append(json.dumps(head)[:-1] + f', "products": {{\n{products}\n}}}}')
    return "[" + ",\n".join(texts) + "]\n"


def main():
    file, *runs = map(Path, sys.argv[1:])
    logs = [[json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()] for run in runs]
    file.write_text(written(map(recording, logs)))


if __name__ == "__main__":
    main()
