"""`python -m plimsoll compare --methods NAME,...`: the methods of scaling in one table."""

from __future__ import annotations

import argparse
import sys

from plimsoll.autoscale.compare import NAMES, Row, compare

_DEFAULT = (
    "fp32,none,loss_scale,dynamic_loss_scale,automatic_loss_scale,constant_bias,amax_bias,delayed,fp8_current,fp8_delayed,"
    "unit_scaling,scalify_static,static,rms_grad,autoscale"
)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def table(rows: list[Row]) -> str:
    """Markdown. Overhead is over `none`, the same engine without scales, if it is there, else over the first."""
    widths = list(rows[0].losses)
    base = next((row for row in rows if row.method.name == "none"), rows[0])
    reference = next((row for row in rows if row.method.name == "fp32"), None)
    heads = ["method", "a scale for each tensor", "alters the model", f"overhead over {base.method.name}"]
    heads += [f"loss at {width}" for width in widths] + ["out of range"]
    if reference is not None:
        heads.insert(-1, "largest difference from fp32")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row.method.name, _yes(row.method.fine_grained), _yes(row.method.alters_model)]
        cells.append(f"{100 * (row.seconds / base.seconds - 1):+.0f} %")
        cells += [f"{row.losses[width]:.4f}" for width in widths]
        if reference is not None:
            differences = [row.losses[width] / reference.losses[width] - 1 for width in widths]
            cells.append(f"{100 * max(differences, key=abs):+.2f} %")
        cells.append("" if row.out_of_range is None else f"{100 * row.out_of_range:.3f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="plimsoll compare", description="Train the same model by several methods of scaling, and compare them"
    )
    parser.add_argument("--methods", default=_DEFAULT, metavar="NAME,...", help=f"of {', '.join(NAMES)}; loss_scale(1024) [all]")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256], help="of the model [64 128 256]")
    parser.add_argument("--steps", type=int, default=200, help="of AdamW [200]")
    given = parser.parse_args(arguments)
    if given.steps < 1 or min(given.widths) < 1:
        parser.error("expected --steps and --widths of at least 1")
    try:
        rows = compare(given.methods.split(","), given.widths, given.steps)
    except ValueError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0
