"""Ranks of `plimsoll train --shard` that are killed or stopped: as they start, while they train, while they save. Every other
rank ends by itself within the deadline and a minute, with an error, and says who is gone; the run goes on from its last
checkpoint.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import TEST_HELPERS, Attack
from runs import LIMIT, expect_success, leftovers, train

sys.path.append(str(TEST_HELPERS))
from launched_ranks import rank_environment, reserved_port

MINUTES = 5.0

RANKS = 3
STRUCK = 24
DEADLINE = 10
PROMISE = DEADLINE + 60  # 5 that the page promises, where the ranks have processors of their own
WAYS = ("ddp", "zero1", "zero2", "fsdp")
PHASES = ("start", "training", "saving")


def start(out, way, port, *more):
    command = [str(word) for word in train(out, f"--shard={way}", f"--deadline={DEADLINE}", "--save-every=4", "--keep=2", *more)]
    return [
        subprocess.Popen(
            command,
            env=rank_environment(rank, RANKS, port),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]


def wait_until(condition):
    limit = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < limit:
        time.sleep(0.001)


def wait_for_phase(attack, phase, out):
    if phase == "start":
        time.sleep(attack.random.uniform(0, 1.5))
    elif phase == "training":
        wait_until(lambda: any(out.glob("step-*/manifest.json")))
        time.sleep(attack.random.uniform(0, 0.3))
    else:
        wait_until(lambda: any(out.glob("step-*.partial")))


def ends(processes, begin):
    """(exit code, seconds, stderr) of each; None for one that does not end."""
    found: dict[int, tuple[int, float, str]] = {}
    while len(found) < len(processes) and time.monotonic() < begin + PROMISE + 30:
        for rank, process in processes.items():
            if rank not in found and process.poll() is not None:
                found[rank] = (process.returncode, time.monotonic() - begin, process.stderr.read())
        time.sleep(0.005)
    return {rank: found.get(rank) for rank in processes}


def strike(attack, out, way, phase, name, victim):
    with reserved_port() as port:
        strike_ranks(attack, out, start(out, way, port, "--steps=1000000"), way, phase, name, victim)


def strike_ranks(attack, out, processes, way, phase, name, victim):
    try:
        wait_for_phase(attack, phase, out)
        processes[victim].send_signal(getattr(signal, name))
        others = {rank: process for rank, process in enumerate(processes) if rank != victim}
        case = f"{name} of rank {victim} in {phase} under {way}"
        for rank, end in ends(others, time.monotonic()).items():
            if end is None:
                attack.fail(f"{case}: rank {rank} hangs")
                continue
            code, seconds, said = end
            if seconds > PROMISE:
                attack.fail(f"{case}: rank {rank} ended after {seconds:.1f} s, expected {PROMISE}\n{said}")
            ours = [line for line in said.splitlines() if line.startswith("plimsoll: ")]
            if code != 1 or len(ours) != 1 or "rank" not in ours[0]:
                attack.fail(f"{case}: rank {rank} ended with {code} and said {said!r}")
            elif phase == "training" and not (f"rank {victim} has ended" in said or (victim == 0 and "the store" in said)):
                attack.fail(f"{case}: rank {rank} does not name it: {said!r}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()


def main():
    attack = Attack("struck ranks")
    with tempfile.TemporaryDirectory(prefix="plimsoll-ranks-") as name:
        number = 0
        while attack.goes_on(STRUCK):
            out = Path(name) / str(number)
            case = WAYS[number % 4], PHASES[number % 3], ("SIGKILL", "SIGSTOP")[number // 3 % 2], number // 2 % RANKS
            strike(attack, out, *case)
            attack.count += 1
            if any(out.glob("step-*")):
                last = max(int(path.name[5:13]) for path in out.glob("step-*"))
                expect_success(train(out, "--shard=none", f"--steps={last + 4}", "--resume"))
                if leftovers(out):
                    attack.fail(f"{case}: {leftovers(out)} are left")
            shutil.rmtree(out, ignore_errors=True)
            number += 1
    return attack.finish()


if __name__ == "__main__":
    sys.exit(main())
