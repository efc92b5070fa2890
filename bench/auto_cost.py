"""Cost of `--recipe auto` in a training step, beside the same codes without a controller, in processor time.

    .venv/bin/python bench/auto_cost.py --data DIR... [--ladder e4m3>bf16] [--rounds 10] [--steps 41] [--dim 256] [--json FILE]

A round is a short run of `plimsoll train` of each contestant, in turn, in an order that turns with the round, on one thread: auto, and what
its ladder begins with. For e4m3 that is e4m3 (delayed scaling, E4M3 in both passes), and fp8 (E5M2 backward) runs, too; for e2m1 it is nvfp4
in all blocks.
A run gives the median processor time of its steps, for auto of those that are measured and of the others; a step of auto takes the mean over a
cycle, one measured step and the others. The first steps are left out. A pair's ratio is that of two runs of one round.

Prints the median of the pairs' ratios, with the quartiles between which half of them lie. Exit code 1 if auto takes 2 % or more above one of
the others. A run of auto that moves a product to another format compares nothing: that is an error.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import json_file

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 2.0  # percent of a step
EVERY, FIRST = 16, 8  # steps between two measured ones, by default; steps that are left out
# Arguments of what a ladder is compared with, by its first format.
BASES = {
    "e4m3": {"e4m3": ["--recipe", '{"name": "fp8", "fp8_format": "E4M3"}'], "fp8": ["--recipe", "fp8"]},
    "e2m1": {"nvfp4": ["--recipe", "nvfp4", "--high-precision-tail", "0"]},
}


def is_measured(step):
    """step: counted from 1, as in a log."""
    return (step - 1) % EVERY == 0


def step_seconds(log):
    """{"step", "measured", "other"}: seconds of the mean step of a cycle, and the medians of both kinds of steps."""
    moved = [change for line in log for change in line.get("precision", {}).get("changes", [])]
    if moved:
        raise ValueError(f"auto: expected a run that stays in one format, got {len(moved)} changes")
    seconds = {line["step"]: line["cpu_s"] for line in log if line.get("step", 0) > FIRST}
    measured = statistics.median(value for step, value in seconds.items() if is_measured(step))
    other = statistics.median(value for step, value in seconds.items() if not is_measured(step))
    return {"step": (measured + (EVERY - 1) * other) / EVERY, "measured": measured, "other": other}


def contestants(ladder):
    """Arguments by name, auto's last."""
    auto = ["--recipe", json.dumps({"name": "auto", "ladder": ladder, "every": EVERY})]
    return {**BASES[ladder.partition(">")[0]], "auto": auto}


def run(args, recipe, out):
    shape = [f"--{key}={getattr(args, key)}" for key in ("layers", "dim", "heads", "context", "batch", "steps")]
    plan = ["--threads=1", "--log-scales=0", "--eval-every=0", "--eval-windows=1", "--save-every=0", "--log-every=1000"]
    command = [str(Path(args.build) / "bin" / "plimsoll"), "train", "--data", *args.data, "--out", str(out)]
    command += [*recipe, *shape, *plan]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return step_seconds([json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()])


def ratios(rounds, base, part="step"):
    """Percent by which auto's part of a step is above a step of the base, of each round."""
    return [100 * (one["auto"][part] / one[base]["step"] - 1) for one in rounds]


def report(rounds):
    """(lines to print, whether the bar holds)."""
    lines, good = [f"{'auto beside':14}{'median':>9}{'quartiles':>20}{'a measured step':>18}{'another':>10}"], True
    for base in (name for name in rounds[0] if name != "auto"):
        percents = ratios(rounds, base)
        median = statistics.median(percents)
        low, _, high = statistics.quantiles(percents, n=4, method="inclusive") if len(percents) > 1 else percents * 3
        measured, other = (statistics.median(ratios(rounds, base, part)) for part in ("measured", "other"))
        within = median < LIMIT  # NaN is not
        good = good and within
        lines.append(
            f"{base:14}{median:+8.2f}%{f'{low:+.2f}% to {high:+.2f}%':>20}{measured:+17.1f}%{other:+9.2f}%"
            + ("" if within else "  beyond the limit")
        )
    return lines, good


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--ladder", default="e4m3>bf16", help="of auto; begins with e4m3 or e2m1")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=41, help="of a run")
    for name, value in (("layers", 4), ("dim", 256), ("heads", 4), ("context", 128), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--json", help="write the seconds of each round to this file")
    args = parser.parse_args()
    if args.ladder.partition(">")[0] not in BASES:
        parser.error(f"expected --ladder that begins with one of {', '.join(BASES)}, got {args.ladder}")
    if args.steps <= FIRST + EVERY or args.rounds < 1:
        parser.error(f"expected --steps above {FIRST + EVERY} and --rounds of one or more")
    return args


def main():
    args = parse_arguments()
    rounds: list[dict[str, dict[str, float]]] = []
    recipes = contestants(args.ladder)
    names = list(recipes)
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(args.rounds):
            first = number % len(names)
            turn = names[first:] + names[:first]
            runs = {name: run(args, recipes[name], Path(temporary) / f"{number}-{name}") for name in turn}
            rounds.append({name: runs[name] for name in names})
            if args.json:
                json_file.write(args.json, {"arguments": vars(args), "rounds": rounds})
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    lines, good = report(rounds)
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
