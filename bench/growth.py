"""Growth of a training step: tokens/s and peak memory over the batch, or over the length of the texts, all sizes in turn.

    .venv/bin/python bench/growth.py batch 4,16,64 [--recipe fp8] [--rounds 3] [--layers 6 ...] [--json FILE]
    .venv/bin/python bench/growth.py context 512,2048,8192 --tokens 8192

Over the context the batch shrinks so that a step has --tokens tokens.
"""

import argparse
from pathlib import Path

import gpt_step
import json_file

ROOT = Path(__file__).resolve().parent.parent


def shapes(args):
    """The shape of each size, as gpt_step.py names it."""
    for size in args.sizes:
        shape = {name: getattr(args, name) for name in gpt_step.SHAPE}
        shape[args.over] = size
        if args.over == "context":
            if args.tokens % size:
                raise SystemExit(f"growth: expected --tokens that every context divides, got {args.tokens} and {size}")
            shape["batch"] = args.tokens // size
        yield shape


def rows_of(runners, sizes, tokens):
    """A row for each size; `flatness` is tokens/s over those of the first size."""
    rows = []
    for one, size, count in zip(runners, sizes, tokens, strict=True):
        seconds = one.median()
        rows.append(
            {"size": size, "median_seconds": seconds, "tokens_per_s": count / seconds, "peak_rss_bytes": one.peak_rss_bytes}
        )
    for row in rows:
        row["flatness"] = row["tokens_per_s"] / rows[0]["tokens_per_s"]
    return rows


def table(over, rows):
    lines = [f"{over:>10}{'median s':>11}{'tokens/s':>11}{'x first':>9}{'peak MB':>9}"]
    for row in rows:
        lines.append(
            f"{row['size']:10}{row['median_seconds']:11.3f}{row['tokens_per_s']:11.0f}{row['flatness']:9.2f}{row['peak_rss_bytes'] / 1e6:9.0f}"
        )
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("over", choices=("batch", "context"))
    parser.add_argument("sizes", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--recipe", choices=gpt_step.RECIPES, default="fp8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8192, help="of a step, when the context grows")
    for name, value in gpt_step.PRESETS["small"].items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--json", help="write the table to this file")
    return parser.parse_args()


def main():
    args = parse_arguments()
    worker = Path(args.build) / "bin" / "gpt_step_worker"
    chosen = list(shapes(args))
    runners = [
        gpt_step.Runner(
            f"{args.over} {shape[args.over]}",
            [
                worker,
                f"--recipe={args.recipe}",
                f"--threads={args.threads}",
                *(f"--{key}={value}" for key, value in shape.items()),
            ],
            {},
            restart=False,
        )
        for shape in chosen
    ]
    gpt_step.measure(runners, args.rounds, restart=False)
    rows = rows_of(runners, args.sizes, [shape["batch"] * shape["context"] for shape in chosen])
    print(table(args.over, rows))
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
