"""``python -m plimsoll ...`` is the command ``build/bin/plimsoll ...``."""

import os
import sys

from plimsoll._library import find


def main() -> None:
    program = find().parent / "bin" / "plimsoll"
    if not program.is_file():
        sys.exit(f"plimsoll: expected the program {program}, found none; run `make build`")
    os.execv(program, ["plimsoll", *sys.argv[1:]])


main()
