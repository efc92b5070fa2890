"""Calls every operator of ours with hostile arguments between guarded pages: python/tests/hostile_operators.py.

operators.py --seconds 3600 --seed 1 --json FILE
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MINUTES = 2
CALLS_OF_A_SEED = 50_000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="the file for the result")
    options = parser.parse_args()
    os.environ.setdefault("PLIMSOLL_BUILD", str(ROOT / "build"))
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python" / "tests")]
    import hostile_operators
    import plimsoll  # noqa: F401  so that a library that cannot be loaded is told at once

    began, seed = time.monotonic(), options.seed
    calls = 0
    failures: list[str] = []
    operators: set[str] = set()
    while time.monotonic() - began < options.seconds and len(failures) < 50:
        left = options.seconds - (time.monotonic() - began)
        result = hostile_operators.attack(seed, CALLS_OF_A_SEED, left)
        calls, failures, operators = calls + result.calls, failures + result.failures, operators | result.operators
        seed += 1
    what = f"calls of {len(operators)} operators and methods with hostile arguments"
    print(f"operators: {calls} {what}, {len(failures)} failures")
    for failure in failures:
        print(failure)
    if options.json:
        summary = {
            "attack": "operators",
            "what": what,
            "count": calls,
            "failures": failures,
            "seconds": round(time.monotonic() - began, 1),
        }
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if failures or calls == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
