"""The program plimsoll, run as a user runs it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plimsoll as package

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


def interrupted(words: Sequence[Any], begun: Callable[[], bool]) -> tuple[str, str, int]:
    """Output, errors and exit code of a command that gets Ctrl-C when begun() is true."""
    process = subprocess.Popen(command_of(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not begun() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)
    return output, error, process.returncode


def refused(*words: Any) -> str:
    """The one line of a command that must fail."""
    result = plimsoll(*words)
    assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
    return result.stderr
