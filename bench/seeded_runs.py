"""Arguments and tables of scripts that train with several seeds; what stands behind "--" goes to plimsoll."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seeded_parser(description, out):
    """out: the folder in out/ where runs go."""
    parser = argparse.ArgumentParser(description=description.partition("\n\n")[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", default=str(ROOT / "out" / out))
    parser.add_argument("--build", default=str(ROOT / "build"))
    return parser


def parsed_with_more(parser):
    """The parsed arguments, and the words behind "--"."""
    own, more = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, more = own[:cut], own[cut + 1 :]
    return parser.parse_args(own), more


def print_heading(name, width, seeds):
    print(f"{name:{width}}" + "".join(f"{'seed ' + seed:>10}" for seed in seeds) + f"{'mean':>10}")


def print_percents(name, width, percents, mean, within):
    """A line of the differences of each seed and their mean; `within` the limits or not."""
    print(f"{name:{width}}" + "".join(f"{p:+9.2f}%" for p in percents) + f"{mean:+9.2f}%{'' if within else '  beyond the limit'}")
