"""`python -m plimsoll report`."""

from __future__ import annotations

import argparse
import sys

from plimsoll.report.page import report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="plimsoll report", description="Write one HTML page about training runs and checkpoints"
    )
    runs = "a log of JSON lines, the directory of train, compare, gauge or line, or the file of parity --json"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=runs)
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page [report.html]")
    given = parser.parse_args(arguments)
    try:
        path = report(given.runs, given.out)
    except OSError as error:
        print(
            f"plimsoll: report: {error.filename}: {error.strerror}" if error.strerror else f"plimsoll: {error}", file=sys.stderr
        )
        return 1
    except (ValueError, ImportError) as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return 1
    print(f"report: {path}")
    return 0
