"""``plimsoll``, ``python -m plimsoll``: the program ``build/bin/plimsoll``; ``report`` and ``compare --methods`` are Python's own."""

import os
import sys

from plimsoll import _library
from plimsoll.autoscale.compare_command import main as compare_methods
from plimsoll.report.command import main as report


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        sys.exit(report(sys.argv[2:]))
    if sys.argv[1:2] == ["compare"] and any(argument.split("=")[0] == "--methods" for argument in sys.argv[2:]):
        sys.exit(compare_methods(sys.argv[2:]))
    program = _library.program()
    if not program.is_file():
        sys.exit(f"plimsoll: expected the program {program}, found none; run `make build`")
    os.execv(program, ["plimsoll", *sys.argv[1:]])


if __name__ == "__main__":
    main()
