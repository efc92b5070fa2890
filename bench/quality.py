"""Does every recipe train as well as fp32? Runs `plimsoll compare` over several seeds and holds the final validation losses together.

    .venv/bin/python bench/quality.py --data DIR... [--seeds 1,2,3] [--out out/quality] [-- more flags of compare]

Prints, per recipe, the difference from fp32 for each seed and its mean, in percent; exit code 1 if a mean is further off than 0.5
or one seed than 1, to either side.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from seeded_runs import parsed_with_more, print_heading, print_percents, seeded_parser

WIDTH = 14  # of the names of recipes
MEAN_LIMIT, SEED_LIMIT = 0.5, 1.0  # percent of fp32's loss


def differences(binary, args, seed, more):
    out = Path(args.out) / f"seed-{seed}"
    command = [binary, "compare", "--recipes", args.recipes, "--data", *args.data, "--out", out, "--seed", seed, *more]
    subprocess.run([str(word) for word in command], check=True)
    results = json.loads((out / "compare.json").read_text())["results"]
    return {run["recipe"]: run["difference_percent"] for run in results}


def main():
    parser = seeded_parser(__doc__, "quality")
    parser.add_argument("--recipes", default="fp32,bf16,fp8,fp8-current,fp8-block,mxfp8")
    args, more = parsed_with_more(parser)

    seeds = args.seeds.split(",")
    by_seed = [differences(Path(args.build) / "bin" / "plimsoll", args, seed, more) for seed in seeds]
    good = True
    print_heading("recipe", WIDTH, seeds)
    for recipe in args.recipes.split(","):
        percents = [run[recipe] for run in by_seed]
        mean = statistics.mean(percents)
        # Far below fp32 is as wrong as far above; NaN is within no limit.
        within = abs(mean) <= MEAN_LIMIT and all(abs(percent) <= SEED_LIMIT for percent in percents)
        good = good and within
        print_percents(recipe, WIDTH, percents, mean, within)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
