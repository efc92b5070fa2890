"""Does a model train as well on states of fewer bits? Runs `plimsoll train` for each kind and seed, and compares validation losses.

    .venv/bin/python bench/optimizer_states.py --data DIR... [--seeds 1,2,3] [--out out/states] [-- more flags of train]

Prints, for each kind of states and masters, the difference from fp32 ones for each seed and its mean, in percent; exit code 1 if
a mean is further off than 0.3, to either side.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    own, more = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, more = own[:cut], own[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--kinds", nargs="+", default=["8bit,split", "8bit,none"], help="states,masters")
    parser.add_argument("--out", default=str(ROOT / "out" / "states"))
    parser.add_argument("--build", default=str(ROOT / "build"))
    args = parser.parse_args(own)

    seeds = args.seeds.split(",")
    losses = {kind: [validation_loss(args, kind, seed, more) for seed in seeds] for kind in [REFERENCE, *args.kinds]}
    good = True
    print(f"{'states,masters':16}" + "".join(f"{'seed ' + seed:>10}" for seed in seeds) + f"{'mean':>10}")
    print(f"{REFERENCE:16}" + "".join(f"{loss:10.4f}" for loss in losses[REFERENCE]))
    for kind in args.kinds:
        percents = [100 * (loss / fp32 - 1) for loss, fp32 in zip(losses[kind], losses[REFERENCE], strict=True)]
        mean = statistics.mean(percents)
        within = abs(mean) <= LIMIT  # NaN is not
        good = good and within
        print(f"{kind:16}" + "".join(f"{p:+9.2f}%" for p in percents) + f"{mean:+9.2f}%{'' if within else '  beyond the limit'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
