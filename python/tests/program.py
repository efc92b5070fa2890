"""The program plimsoll, run as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plimsoll as package
import traced

PROGRAM = package._library.find().parent / "bin" / "plimsoll"


def command_of(*words: Any) -> list[str | bytes]:
    return [str(PROGRAM), *(word if isinstance(word, bytes) else str(word) for word in words)]


def plimsoll(*words: Any, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command_of(*words), capture_output=True, text=True, timeout=600, check=False, env=variables)


def done(*words: Any) -> str:
    """The output of a command that must succeed."""
    result = plimsoll(*words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def generated(model: Any, folder: Path, *options: Any) -> tuple[str, list[int], list[float]]:
    """(text, ids, log probabilities) of `plimsoll generate`."""
    log = folder / "log"
    done("generate", "--model", model, "--json", log, *options)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    tokens = [line for line in lines if "id" in line]
    return lines[-1]["text"], [token["id"] for token in tokens], [token["log_probability"] for token in tokens]


def interrupted(words: Sequence[Any], begun: Callable[[], bool]) -> tuple[str, str, int]:
    """Output, errors and exit code of a command that gets Ctrl-C as soon as begun() is true."""
    return traced.strike(traced.stopped_when(command_of(*words), begun), signal.SIGINT)


# The peak memory of a process begins with that of the one that starts it: here that is a small one, not the tests' own.
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
"""


def measured(*words: Any) -> tuple[int, int, float, str]:
    """Exit code of a command, bytes of memory that it held at most, seconds of processors, and what it said on stderr."""
    command = [sys.executable, "-S", "-c", MEASURE, *command_of(*words)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    code, memory, seconds = result.stdout.split()
    return int(code), int(memory), float(seconds), result.stderr


def refused(*words: Any) -> str:
    """The one line of a command that must fail."""
    result = plimsoll(*words)
    assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
    return result.stderr
