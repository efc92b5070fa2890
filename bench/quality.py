"""Does every recipe train as well as fp32? Runs `plimsoll compare` over several seeds and holds the final validation losses together.

    .venv/bin/python bench/quality.py --data DIR... [--seeds 1,2,3] [--out out/quality] [-- more flags of compare]

Prints, per recipe, the difference from fp32 for each seed and its mean, in percent; exit code 1 if a mean is further off than 0.5
or one seed than 1, to either side.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEAN_LIMIT, SEED_LIMIT = 0.5, 1.0  # percent of fp32's loss


def differences(binary, args, seed, more):
    out = Path(args.out) / f"seed-{seed}"
    command = [binary, "compare", "--recipes", args.recipes, "--data", *args.data, "--out", out, "--seed", seed, *more]
    subprocess.run([str(word) for word in command], check=True)
    results = json.loads((out / "compare.json").read_text())["results"]
    return {run["recipe"]: run["difference_percent"] for run in results}


def main():
    own, more = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, more = own[:cut], own[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--recipes", default="fp32,bf16,fp8,fp8-current,fp8-block,mxfp8")
    parser.add_argument("--out", default=str(ROOT / "out" / "quality"))
    parser.add_argument("--build", default=str(ROOT / "build"))
    args = parser.parse_args(own)

    seeds = args.seeds.split(",")
    by_seed = [differences(Path(args.build) / "bin" / "plimsoll", args, seed, more) for seed in seeds]
    good = True
    print(f"{'recipe':14}" + "".join(f"{'seed ' + seed:>10}" for seed in seeds) + f"{'mean':>10}")
    for recipe in args.recipes.split(","):
        percents = [run[recipe] for run in by_seed]
        mean = statistics.mean(percents)
        # Far below fp32 is as wrong as far above; NaN is within no limit.
        within = abs(mean) <= MEAN_LIMIT and all(abs(percent) <= SEED_LIMIT for percent in percents)
        good = good and within
        print(
            f"{recipe:14}" + "".join(f"{p:+9.2f}%" for p in percents) + f"{mean:+9.2f}%{'' if within else '  beyond the limit'}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
