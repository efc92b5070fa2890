"""Base of the attacks: their options, deadline and result, programs under a time limit, and damage to bytes and JSON.

An attack is a program `NAME.py --seconds N --seed S --json FILE` that runs until its count or its time is reached:

    attack = Attack("hostile files")
    while attack.goes_on(100_000):
        attack.count += 1
        if (wrong := strike(attack.random)):
            attack.fail(wrong)
    sys.exit(attack.finish())

It may say its share of the time that tests/attack/run.py has for all: a line `MINUTES = 4` (1 where there is none).
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("PLIMSOLL_BUILD") or ROOT / "build")
PROGRAM = BUILD / "bin" / "plimsoll"
TEST_HELPERS = ROOT / "python" / "tests"

KEPT_FAILURES = 50  # in the result; all are counted
KEPT_CHARACTERS = 2000  # of one failure


def use_library():
    """Makes `import plimsoll` find this clone's package and the library in BUILD."""
    os.environ["PLIMSOLL_BUILD"] = str(BUILD)
    sys.path.insert(0, str(ROOT / "python"))


def library_environment():
    """The environment of a Python process that imports this clone's package."""
    return {**os.environ, "PLIMSOLL_BUILD": str(BUILD), "PYTHONPATH": str(ROOT / "python")}


class Attack:
    """One attack under way: its random numbers, its deadline, what it counted and what went wrong."""

    def __init__(self, what, arguments=None, name=None):
        parser = argparse.ArgumentParser(description=what)
        parser.add_argument("--seconds", type=float, default=60)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--json", type=Path, help="the file for the result")
        options = parser.parse_args(arguments)
        self.what = what
        self.name = name or Path(sys.argv[0]).stem
        self.seed = options.seed
        self.random = random.Random(options.seed)
        self.count = 0
        self.failed = 0
        self.failures = []
        self._json = options.json
        self._seconds = options.seconds
        self.begin()

    def begin(self):
        """Starts its time anew: for an attack that has had something to prepare, however long that took."""
        self._begin = time.monotonic()
        self.deadline = self._begin + self._seconds

    def seconds_left(self):
        return max(0.0, self.deadline - time.monotonic())

    def goes_on(self, count):
        """Whether there is time for more, and fewer than `count` were done."""
        return self.count < count and time.monotonic() < self.deadline

    def fail(self, text):
        self.failed += 1
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(text[:KEPT_CHARACTERS])

    def result(self):
        seconds = round(time.monotonic() - self._begin, 1)
        more = self.failed - len(self.failures)
        failures = self.failures + ([f"and {more} more"] if more else [])
        return {"attack": self.name, "what": self.what, "count": self.count, "failures": failures, "seconds": seconds}

    def finish(self):
        """Prints the summary line and writes the result; returns the exit code. An attack that did nothing has failed."""
        if self.count == 0 and self.failed == 0:
            self.fail("expected one case or more within its time, got none")
        print(f"{self.name}: {self.count} {self.what}, {self.failed} failures", flush=True)
        for failure in self.failures[:5]:
            print("  " + failure.replace("\n", "\n  "), flush=True)
        if self._json is not None:
            self._json.write_text(json.dumps(self.result(), indent=1) + "\n")
        return 1 if self.failed else 0


@dataclass
class Outcome:
    """End of a program. signal: the number of the one that ended it; late: it was killed at its time limit."""

    command: list[str]
    exit_code: int
    signal: int
    late: bool
    output: str
    error: str
    seconds: float


def kill_group(process):
    """Kills a process that leads a session of its own, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_program(command, limit, **options):
    """Runs a command without input for at most `limit` seconds, then kills it with its children."""
    command = [str(word) for word in command]
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        **options,
    )
    late = False
    try:
        output, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        late = True
        kill_group(process)
        output, error = process.communicate()
    finally:
        kill_group(process)
    code = process.returncode
    return Outcome(
        command=command,
        exit_code=code,
        signal=-code if code < 0 and not late else 0,
        late=late,
        output=output,
        error=error,
        seconds=time.monotonic() - begin,
    )


TRACES = ("Traceback (most recent call last)", "frame #", "C++ CapturedTraceback", "Exception raised from", "AddressSanitizer")


def complaint(outcome, allowed=(0, 1, 2, 3), lines=3):
    """Fault in the program's end, or None: it says `lines` lines on stderr at most and ends by itself."""
    error = outcome.error
    if outcome.late:
        wrong = f"did not end in {outcome.seconds:.0f} s"
    elif outcome.signal:
        wrong = f"was ended by {signal.Signals(outcome.signal).name}"
    elif outcome.exit_code not in allowed:
        wrong = f"exit code {outcome.exit_code}"
    elif any(trace in error for trace in TRACES):
        wrong = "a stack trace on stderr"
    elif len(error.splitlines()) > lines:
        wrong = f"{len(error.splitlines())} lines on stderr"
    elif outcome.exit_code in (1, 2) and not error.strip():
        wrong = f"exit code {outcome.exit_code} without a word on stderr"
    else:
        return None
    return f"{wrong}: {' '.join(outcome.command)}\n{error[-1000:]}"
