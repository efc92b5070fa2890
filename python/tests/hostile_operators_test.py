"""Operators under attack: see hostile_operators.py. tests/attack/operators.py goes on for as long as it is given."""

import signal
import subprocess
import sys
from pathlib import Path

import hostile_calls
import hostile_methods
import hostile_operators
import pytest
import torch

SECONDS = 60


def test_every_operator_and_method_has_a_valid_call_to_spoil():
    assert hostile_calls.registered() - set(hostile_calls.CALLS) == set()
    hostile_methods.join_group()
    try:
        for name, (_, methods) in hostile_methods.METHODS.items():
            listed = {each for each in hostile_methods.new(name)._method_names() if not each.startswith("__")}
            assert listed == set(methods), name
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("at_end,step", [(True, "numel()"), (False, "-1")])
def test_a_step_outside_of_guarded_memory_ends_the_process(at_end, step):
    tests = str(Path(__file__).resolve().parent)
    script = (
        f"import sys; sys.path.insert(0, {tests!r}); import ctypes, torch; from guarded_memory import GuardedMemory; "
        f"x = GuardedMemory(2, 1).empty([5], torch.float32, {at_end}); step = {step.replace('numel()', 'x.numel()')}; "
        "print(ctypes.c_float.from_address(x.data_ptr() + 4 * (step + (1 if step < 0 else -1))).value, flush=True); "
        "ctypes.c_float.from_address(x.data_ptr() + 4 * step).value"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout and done.returncode == -signal.SIGSEGV, done.stderr


def test_hostile_arguments_end_in_results_or_exceptions():
    result = hostile_operators.attack(seed=1, calls=20_000, seconds=SECONDS)
    assert not result.failures, "\n\n".join(result.failures)
    assert result.operators == set(hostile_calls.all_calls())
    # Spoiled calls that are harmless go through, so that what comes after the checks is reached, too.
    assert result.answered > result.calls / 3
