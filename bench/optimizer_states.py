"""Does a model train as well on states of fewer bits? Runs `plimsoll train` for each kind and seed, and compares validation losses.

    .venv/bin/python bench/optimizer_states.py --data DIR... [--seeds 1,2,3] [--out out/states] [-- more flags of train]

Prints, for each kind of states and masters, the difference from fp32 ones for each seed and its mean, in percent; exit code 1 if
a mean is further off than 0.3, to either side.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from seeded_runs import parsed_with_more, print_heading, print_losses, print_percents, seeded_parser

WIDTH = 16  # of the names of kinds
LIMIT = 0.3  # percent of the loss with fp32 states
REFERENCE = "fp32,fp32"


def validation_loss(args, kind, seed, more):
    states, masters = kind.split(",")
    out = Path(args.out) / f"{states}-{masters}-{seed}"
    log = out.with_suffix(".jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen = ["--optimizer-state", states, "--masters", masters, "--seed", seed, "--json", log]
    command = [Path(args.build) / "bin" / "plimsoll", "train", "--data", *args.data, "--out", out, *chosen, *more]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return json.loads(log.read_text().splitlines()[-1])["final_val_loss"]


def main():
    parser = seeded_parser(__doc__, "states")
    parser.add_argument("--kinds", nargs="+", default=["8bit,split", "8bit,none"], help="states,masters")
    args, more = parsed_with_more(parser)

    seeds = args.seeds.split(",")
    losses = {kind: [validation_loss(args, kind, seed, more) for seed in seeds] for kind in [REFERENCE, *args.kinds]}
    good = True
    print_heading("states,masters", WIDTH, seeds)
    print_losses(REFERENCE, WIDTH, losses[REFERENCE])
    for kind in args.kinds:
        percents = [100 * (loss / fp32 - 1) for loss, fp32 in zip(losses[kind], losses[REFERENCE], strict=True)]
        mean = statistics.mean(percents)
        within = abs(mean) <= LIMIT  # NaN is not
        good = good and within
        print_percents(kind, WIDTH, percents, mean, within)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
