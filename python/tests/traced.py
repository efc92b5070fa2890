"""A program that a test holds still in the middle of its work, so that what the test does next comes first for certain."""

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

TRACEME, DETACH, SYSCALL, SETOPTIONS = 0, 17, 24, 0x4200  # sys/ptrace.h
TRACESYSGOOD, EXITKILL = 1, 1 << 20
CALL = signal.SIGTRAP | 0x80  # of a stop at a system call, its beginning or its end
OF_TRACING = (CALL, signal.SIGTRAP)  # the other one: after an exec, as of a program that starts itself anew with other settings
SECONDS = 300  # of a program that never comes so far

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, process: int, data: int = 0) -> None:
    if _libc.ptrace(request, process, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def stopped_when(command: Sequence[Any], begun: Callable[[], bool]) -> subprocess.Popen[str]:
    """A program whose first thread stands still at the first system call at which begun() is true. One that ends before is an
    error, and so is one that takes minutes."""
    trace_me = lambda: ptrace(TRACEME, 0)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=trace_me)
    except subprocess.SubprocessError:
        pytest.skip("a process may not be traced here")
    guard = threading.Timer(SECONDS, process.kill)
    guard.start()
    try:
        status, to_pass_on = os.waitpid(process.pid, 0)[1], 0
        ptrace(SETOPTIONS, process.pid, TRACESYSGOOD | EXITKILL)
        while os.WIFSTOPPED(status) and not begun():
            ptrace(SYSCALL, process.pid, to_pass_on)
            status = os.waitpid(process.pid, 0)[1]
            stopped = os.WIFSTOPPED(status) and os.WSTOPSIG(status) not in OF_TRACING
            to_pass_on = os.WSTOPSIG(status) if stopped else 0
    finally:
        guard.cancel()
    if not os.WIFSTOPPED(status):
        process.returncode = os.waitstatus_to_exitcode(status)
        raise AssertionError(("ended before the test could stop it", process.returncode, *process.communicate()))
    return process


def strike(process: subprocess.Popen[str], number: int) -> tuple[str, str, int]:
    """Output, errors and exit code of a program that stands still and gets this signal before it does anything more."""
    process.send_signal(number)
    if number != signal.SIGKILL:
        ptrace(DETACH, process.pid)
    output, error = process.communicate(timeout=SECONDS)
    return output, error, process.returncode
