"""Two processes that write to one place. A file is one of the two, whole; of two runs on one --out one goes on and the other is
refused with one line, and so with what a stopped one holds. Nothing is left beside.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Attack, complaint, run_program, use_library
from runs import LIMIT, PROGRAM, expect_success, leftovers, train

MINUTES = 1.5

FILES, RUNS = 20, 8
REFUSED = ("that another run", "that no other process writes to")


def together(commands):
    """The outcomes of programs that run at the same time."""
    processes = [
        subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    outcomes = []
    for process in processes:
        output, error = process.communicate(timeout=LIMIT)
        outcomes.append((process.returncode, error))
    return outcomes


def plan(file, batch):
    return [
        PROGRAM,
        "shard-plan",
        "--json",
        file,
        "--batch",
        batch,
        "--world=1,2,3,4,5,6,7,8",
        "--tokens-per-second=300",
        "--bandwidth=10",
    ]


def strike_json(attack, folder):
    """A file of a program's results."""
    wholes = []
    for batch in (1, 1000):
        expect_success(plan(folder / "whole.json", batch))
        wholes.append((folder / "whole.json").read_bytes())
    for _ in range(FILES):
        if attack.seconds_left() == 0:
            break
        file = folder / "plan.json"
        outcomes = together([plan(file, 1), plan(file, 1000)])
        attack.count += 1
        if any(code for code, _ in outcomes):
            attack.fail(f"two plans: {outcomes}")
        if file.read_bytes() not in wholes:
            attack.fail("two plans: the file is neither of the two")
    if leftovers(folder):
        attack.fail(f"two plans: {leftovers(folder)} are left")


def strike_report(attack, folder):
    """A file that Python writes, from forked processes."""
    from plimsoll._whole_file import write_text

    file = folder / "page.html"
    texts = ["x" * 3_000_000, "y" * 2_000_000]
    for _ in range(FILES):
        if attack.seconds_left() == 0:
            break
        children = []
        for text in texts:
            child = os.fork()
            if child == 0:
                write_text(file, text)
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        attack.count += 1
        if any(codes) or file.read_text() not in texts:
            attack.fail(f"two writers of Python: exit codes {codes}, {file.stat().st_size} bytes")
    if leftovers(folder):
        attack.fail(f"two writers of Python: {leftovers(folder)} are left")


def commands(folder):
    """Commands with an --out, and what they make."""
    model = folder / "model"
    expect_success(train(model, "--steps=2"))
    run = ["--steps=30", "--save-every=3"]
    return {
        "train": (train(folder / "out", *run), folder / "out"),
        "compare": ([PROGRAM, "compare", *train(folder / "out", *run, "--recipes=fp32,bf16")[2:]], folder / "out"),
        "gauge": ([PROGRAM, "gauge", "--model", model, "--out", folder / "out"], folder / "out"),
        "consolidate": ([PROGRAM, "consolidate", model, "--out", folder / "out"], folder / "out"),
    }


def remove(place):
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def strike_runs(attack, folder):
    """Two at once: both may end well only where they came one after the other."""
    given = commands(folder)
    for _ in range(RUNS):
        for name, (command, place) in given.items():
            if attack.seconds_left() == 0:
                return
            remove(place)
            outcomes = together([command, command])
            attack.count += 1
            failed = [error for code, error in outcomes if code]
            if len(failed) > 1:
                attack.fail(f"two runs of {name}: neither ended well: {failed}")
            for error in failed:
                if len(error.splitlines()) != 1 or not any(
                    word in error for word in (*REFUSED, "expected a free name", "or --resume")
                ):
                    attack.fail(f"two runs of {name}: refused with {error!r}")
            if not place.exists() or leftovers(folder):
                attack.fail(f"two runs of {name}: {leftovers(folder)} are left")


def strike_stopped(attack, folder):
    """A run that stands still has its place; one that is killed has none."""
    out = folder / "stopped"
    # It saves nothing: what it had saved beyond the steps of the run after it would be too far.
    process = subprocess.Popen([str(word) for word in train(out, "--steps=1000000", "--save-every=0")], stdout=subprocess.DEVNULL)
    limit = time.monotonic() + LIMIT
    while not (out / "train.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGSTOP)
    for more in ((), ("--resume",)):
        outcome = run_program(train(out, "--steps=3", *more), LIMIT)
        attack.count += 1
        if outcome.exit_code != 1 or not any(word in outcome.error for word in REFUSED) or complaint(outcome):
            attack.fail(f"a run beside a stopped one: exit code {outcome.exit_code}, {outcome.error}")
    process.kill()
    process.wait()
    outcome = run_program(train(out, "--steps=3", "--resume"), LIMIT)
    attack.count += 1
    if outcome.exit_code != 0 or json.loads((out / "train.jsonl").read_text().splitlines()[-1])["steps"] != 3:
        attack.fail(f"a run after a killed one: {outcome.error}")


def main():
    attack = Attack("pairs of writers")
    use_library()
    import plimsoll._whole_file  # noqa: F401  children are forked from here

    attack.begin()
    with tempfile.TemporaryDirectory(prefix="plimsoll-writers-") as name:
        for strike in (strike_stopped, strike_report, strike_runs, strike_json):
            (Path(name) / strike.__name__).mkdir()
            strike(attack, Path(name) / strike.__name__)
    return attack.finish()


if __name__ == "__main__":
    sys.exit(main())
