"""Every operator of ours, called with spoiled arguments whose tensors lie between guarded pages, in a child process.

A call may answer or raise one of the exceptions below. A signal, an exit, an internal assertion or a call without an end
is a failure, told with its operator, its arguments and what makes it again:

    python hostile_operators.py SEED NUMBER     # that call alone, in this process
"""

import dataclasses
import json
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ANSWERS = (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, AttributeError)
# No answer to a user: an assertion inside of torch or of ours.
INTERNAL = ("INTERNAL ASSERT", "Please report a bug", "std::bad_alloc", "vector::", "basic_string::", "_M_")
HANG_SECONDS = 120
MEMORY = 6 << 30  # address space that a child may add
FILE_BYTES = 32 << 20


@dataclasses.dataclass
class Result:
    calls: int = 0
    answered: int = 0  # without an exception
    operators: set[str] = dataclasses.field(default_factory=set)
    failures: list[str] = dataclasses.field(default_factory=list)


def planned_call(seed, number):
    """(name, arguments): the same for the same seed and number."""
    from hostile_arguments import mutated
    from hostile_calls import all_calls

    calls = all_calls()
    names = sorted(calls)
    draw = random.Random(f"{seed} {number}")
    # The first rounds go through all of them in turn, then tensors' operators have the larger share.
    name = names[number % len(names)] if number < 2 * len(names) else draw.choice(names)
    arguments = calls[name](draw)
    spoiled = 0 if number < len(names) else draw.choice([0, 1, 1, 1, 1, 2, 2, 3])
    for _ in range(spoiled if arguments else 0):
        place = draw.randrange(len(arguments))
        arguments[place] = mutated(arguments[place], draw)
    return name, arguments, draw


def call_text(seed, number):
    from hostile_arguments import described

    name, arguments, _ = planned_call(seed, number)
    return f"{name}({', '.join(map(described, arguments))}), seed {seed}, number {number}"


def run_call(seed, number, memory):
    """None, or what is wrong with how it ended."""
    import torch
    from hostile_arguments import made
    from hostile_calls import WITHOUT_GRADIENTS, function_of

    name, arguments, draw = planned_call(seed, number)
    torch.manual_seed(number)
    try:
        values = [made(argument, memory, draw) for argument in arguments]
    except ANSWERS:
        return False, None  # torch makes no such tensor
    keywords = values.pop() if values and isinstance(values[-1], dict) else {}
    try:
        with torch.set_grad_enabled(draw.random() < 0.7 and name not in WITHOUT_GRADIENTS):
            result = function_of(name)(*values, **keywords)
            differentiate(result, draw)
    except ANSWERS as error:
        text = str(error)
        return False, f"internal error: {text[:300]}" if any(word in text for word in INTERNAL) else None
    return True, None


def differentiate(result, draw):
    import torch

    outputs = result if isinstance(result, (tuple, list)) else [result]
    wanted = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
    if not wanted or draw.random() < 0.3:
        return
    # One without gradient, expanded ones, and those of another layout.
    output = draw.choice(wanted)
    gradient = draw.choice([torch.ones(()).to(output.dtype).expand(output.shape), torch.randn(output.shape).to(output.dtype)])
    torch.autograd.backward([output], [gradient])


def clean_up():
    """Ends the scopes that a call left open."""
    from plimsoll._scope import _abandon

    _abandon(0)


def limit_resources():
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child(seed, first, end, deadline, progress_file):
    import plimsoll  # noqa: F401
    import torch
    from guarded_memory import GuardedMemory
    from hostile_calls import all_calls
    from hostile_methods import join_group

    os.chdir(tempfile.mkdtemp(prefix="plimsoll-hostile-"))
    join_group()
    torch.set_num_threads(random.Random(seed + first).choice([1, 3]))
    limit_resources()
    memory = GuardedMemory()
    with open(progress_file, "r+b") as file:
        progress = mmap.mmap(file.fileno(), 16)
    answered = 0
    for number in range(first, end):
        if time.time() > deadline:
            break
        struct.pack_into("qq", progress, 0, number, answered)
        good, wrong = run_call(seed, number, memory)
        answered += good
        if not good and number < len(all_calls()):
            wrong = wrong or "a valid call is refused"
        if wrong:
            print(json.dumps([number, wrong]), flush=True)
        clean_up()
    else:
        number = end
    struct.pack_into("qq", progress, 0, number, answered)
    sys.stdout.flush()
    os._exit(0)


def started(seed, first, end, deadline, progress_file):
    script = (
        f"import sys; sys.path[:0] = {[str(TESTS.parent), str(TESTS)]!r}; import hostile_operators; "
        f"hostile_operators.child({seed}, {first}, {end}, {deadline}, {str(progress_file)!r})"
    )
    # New and freed memory of malloc holds rubbish.
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def awaited(process, progress_file):
    """(stdout, stderr, hung). A process that makes no progress is ended."""
    last, since = None, time.monotonic()
    while True:
        try:
            return *process.communicate(timeout=2), False
        except subprocess.TimeoutExpired:
            now = progress_file.read_bytes()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > HANG_SECONDS:
                process.kill()
                return *process.communicate(), True


def attack(seed, calls, seconds, enough_failures=20):
    """Calls number 0 .. calls - 1 of a seed, as many as the time is enough for."""
    sys.path[:0] = [str(TESTS.parent), str(TESTS)]
    result, first, deadline = Result(), 0, time.time() + seconds
    with tempfile.TemporaryDirectory() as folder:
        progress_file = Path(folder) / "progress"
        while first < calls and time.time() < deadline and len(result.failures) < enough_failures:
            progress_file.write_bytes(struct.pack("qq", first, 0))
            process = started(seed, first, calls, deadline, progress_file)
            output, errors, hung = awaited(process, progress_file)
            number, answered = struct.unpack("qq", progress_file.read_bytes())
            result.answered += answered
            for line in output.splitlines():
                if line.startswith("["):
                    at, wrong = json.loads(line)
                    result.failures.append(f"{wrong}: {call_text(seed, at)}")
            ended = number
            if process.returncode != 0:
                how = "no end" if hung else ended_by(process.returncode)
                result.failures.append(f"{how}: {call_text(seed, number)}\n{errors[-800:]}")
                ended = number + 1
            result.calls += ended - first
            result.operators |= {planned_call(seed, one)[0] for one in range(first, min(ended, first + 2000))}
            first = ended
            if process.returncode == 0:
                break
    return result


def ended_by(code):
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS.parent), str(TESTS)]
    import plimsoll  # noqa: F401
    from guarded_memory import GuardedMemory

    print(call_text(int(sys.argv[1]), int(sys.argv[2])), flush=True)
    from hostile_methods import join_group

    join_group()
    print(run_call(int(sys.argv[1]), int(sys.argv[2]), GuardedMemory()))
