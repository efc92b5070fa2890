"""Arguments and tables of scripts that train with several seeds."""

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
    """The parsed arguments, and the words behind "--", which go to plimsoll."""
    own, more = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, more = own[:cut], own[cut + 1 :]
    return parser.parse_args(own), more


def print_row(name, width, cells):
    print(f"{name:{width}}" + "".join(cells), flush=True)


def print_heading(name, width, seeds):
    print_row(name, width, [*(f"{'seed ' + seed:>10}" for seed in seeds), f"{'mean':>10}"])


def print_losses(name, width, losses):
    print_row(name, width, (f"{loss:10.4f}" for loss in losses))


def print_percents(name, width, percents, mean, within):
    """A line of the differences of each seed and their mean; `within` the limits or not."""
    print_row(name, width, [*(f"{p:+9.2f}%" for p in (*percents, mean)), "" if within else "  beyond the limit"])
