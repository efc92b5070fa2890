"""kill -9 at random moments: in train and finetune, while a step is saved, the same one again or a large one, by one process or by
two, in consolidate, gauge and merge. A run that is resumed has the bits of one that nothing happened to, a checkpoint or file is there
whole, old or new, and what the killed process left is gone after the next one.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

from common import TEST_HELPERS, Attack, run_program, use_library
from runs import LIMIT, PROGRAM, expect_success, files_of, leftovers, train
from small_models import write_adapter, write_chats, write_llama

sys.path.append(str(TEST_HELPERS))
from launched_ranks import reserved_port

MINUTES = 5.0

TRAINING, SAVES, TWO_RANKS, COMMANDS = 37, 30, 10, 30
STEPS = 60
ELEMENTS = 12 << 20  # of a large save: 48 MB


def kill_after(process, seconds):
    """True if it was killed; False if it had ended by then."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def start(command):
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds_of(command):
    begin = time.monotonic()
    expect_success(command)
    return time.monotonic() - begin


def log_of(out):
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "step" in line]


def strike_training(attack, folder):
    arguments = [f"--steps={STEPS}", "--save-every=5", "--keep=2", "--recipe=fp8"]
    strike_runs(attack, folder, "training", lambda out: train(out, *arguments))


def strike_finetune(attack, folder):
    write_llama(folder / "model")
    write_chats(folder / "chats.jsonl")
    command = [PROGRAM, "finetune", "--model", folder / "model", "--data", folder / "chats.jsonl", f"--steps={STEPS}",
               "--context=16", "--batch=1", "--save-every=5", "--keep=2", "--samples=0", "--threads=1"]  # fmt: skip
    strike_runs(attack, folder, "finetune", lambda out: [*command, "--out", out])


def results_of(run):
    """{name: bytes} of the last step's tensors and of the directory that finetune leaves beside it; the log."""
    return files_of(run / f"step-{STEPS:08}"), files_of(run), log_of(run)


def strike_runs(attack, folder, what, command):
    """Each run is killed up to four times before it may end."""
    whole = folder / "whole"
    seconds = seconds_of(command(whole))
    expected = results_of(whole)
    kills = 0
    for number in range(TRAINING):
        if kills >= TRAINING or attack.seconds_left() == 0:
            break
        out = folder / f"run-{number}"
        for _ in range(4):
            killed = kill_after(start([*command(out), "--resume"]), attack.random.uniform(0.3, 1) * seconds)
            kills += killed
            attack.count += killed
        expect_success([*command(out), "--resume"])
        if results_of(out) != expected:
            attack.fail(f"{what}: run {number}, killed and resumed, has other bits")
        if leftovers(out):
            attack.fail(f"{what}: {leftovers(out)} are left")
        shutil.rmtree(out)


def fork(body, trace):
    """Process that runs body. Where body throws, it leaves the stack trace in the file `trace` and ends with 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            trace.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    return child


def one_has_ended(children):
    """Whether a child has ended; its status stays there to be read."""
    return any(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) for child in children)


def wait_for(condition, children, pause):
    """Waits until condition() holds or a child has ended, LIMIT seconds at most."""
    limit = time.monotonic() + LIMIT
    while not condition() and not one_has_ended(children) and time.monotonic() < limit:
        time.sleep(pause)


def save_forever(run, steps, elements, rank=0, ranks=1, port=None):
    """Saves tensors whose elements all have the number of the save, and its step in turn from `steps`."""
    import torch
    from plimsoll.shard import CheckpointSaver

    torch.set_num_threads(1)
    if ranks > 1:
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    saver = CheckpointSaver(run, keep=2)
    for number in range(1_000_000):
        value = float(number + 1)
        tensors = {"a": torch.full((elements,), value), "b": torch.full((elements // 2,), value)}
        saver.save(steps[number % len(steps)], {"model": tensors}, {"value": value})


def wrong_checkpoint(run):
    """Fault of the newest checkpoint, or None."""
    from plimsoll.shard import open_latest_checkpoint

    try:
        latest = open_latest_checkpoint(run)
    except RuntimeError as error:
        return f"cannot be opened: {str(error).splitlines()[0]}"
    if latest is None:
        return f"is none: {sorted(path.name for path in run.iterdir())}"
    if latest.refused:
        return f"follows upon damaged ones: {latest.refused}"
    mixed = [name for name, tensor in latest.section("model").items() if not (tensor == latest.state["value"]).all()]
    return f"has mixed values in {mixed}" if mixed else None


def strike_saves(attack, folder, what, steps, elements, count, ranks=1):
    """Saves are killed a random time after the first one is there."""
    run = folder / what.replace(" ", "-")
    shortest = 0.05 if elements < 1 << 20 else 0.5
    for _ in range(count):
        if attack.seconds_left() == 0:
            break
        before = newest_change(run)
        traces = [folder / f"trace-{rank}" for rank in range(ranks)]
        with reserved_port() as port:
            saves = [partial(save_forever, run, steps, elements, rank, ranks, port) for rank in range(ranks)]
            children = [fork(save, trace) for save, trace in zip(saves, traces, strict=True)]
            wait_for(lambda before=before: newest_change(run) != before, children, 0.002)
            time.sleep(attack.random.uniform(0, 4 * shortest))
            if attack.random.random() < 0.7:
                # Often in the moments in which one checkpoint takes the place of another.
                wait_for(lambda: any(run.glob("step-*.partial/manifest.json")), children, 0)
                time.sleep(attack.random.uniform(0, 0.004))
            ended = one_has_ended(children)
            victims = children if ranks == 1 else attack.random.sample(children, len(children))
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
                time.sleep(attack.random.uniform(0, 0.02))
            statuses = {child: os.waitpid(child, 0)[1] for child in children}
        # Ranks whose peer was killed may throw; the first victim may not.
        if ended or os.waitstatus_to_exitcode(statuses[victims[0]]) != -signal.SIGKILL:
            said = "".join(trace.read_text() for trace in traces if trace.exists())
            attack.fail(f"{what}: a save ended before it was killed\n{said}")
            break
        attack.count += 1
        if wrong := wrong_checkpoint(run):
            attack.fail(f"{what}: the checkpoint {wrong}")
    shutil.rmtree(run, ignore_errors=True)


def newest_change(run):
    """Time at which a checkpoint of the run was last put in its place."""
    newest = 0
    for path in run.glob("step-*/manifest.json") if run.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # one that the run removes meanwhile
            if path.parent.suffix == "":
                newest = max(newest, path.stat().st_mtime_ns)
    return newest


def strike_consolidate(attack, folder):
    import torch
    from plimsoll.shard import CheckpointSaver

    torch.set_num_threads(1)
    run, out = folder / "large", folder / "whole.safetensors"
    CheckpointSaver(run).save(1, {"model": {"a": torch.arange(ELEMENTS)}})
    command = [PROGRAM, "consolidate", run, "--out", out]
    seconds = seconds_of(command)
    whole = out.read_bytes()
    for _ in range(COMMANDS):
        if attack.seconds_left() == 0:
            break
        out.unlink(missing_ok=True)
        kill_after(start(command), attack.random.uniform(0.2, 1) * seconds)
        attack.count += 1
        found = out.read_bytes() if out.exists() else None
        if found not in (whole, None):
            attack.fail(f"consolidate: {out.name} has {len(found)} bytes, which are not the whole file")
    out.unlink(missing_ok=True)
    expect_success(command)
    if out.read_bytes() != whole or leftovers(folder):
        attack.fail(f"consolidate: {leftovers(folder)} are left")


def strike_gauge(attack, folder):
    run, out = folder / "gpt", folder / "gauged"
    expect_success(train(run, "--steps=2", "--recipe=fp16"))
    strike_writer(attack, folder, "gauge", out, [PROGRAM, "gauge", "--model", run, "--out", out, "--threads", "1"])
    read = run_program([PROGRAM, "generate", "--checkpoint", out, "--tokens", "4"], LIMIT)
    if read.exit_code != 0:
        attack.fail(f"gauge: {read.error}")


def strike_merge(attack, folder):
    model, adapter, out = folder / "model", folder / "adapter", folder / "merged"
    write_llama(model)
    write_adapter(adapter)
    strike_writer(attack, folder, "merge", out, [PROGRAM, "merge", "--model", model, "--adapter", adapter, "--out", out])
    read = run_program([PROGRAM, "generate", "--model", out, "--prompt", "a", "--tokens", "4"], LIMIT)
    if read.exit_code != 0:
        attack.fail(f"merge: {read.error}")


def strike_quantize(attack, folder):
    model, out = folder / "model", folder / "codes"
    write_llama(model)
    strike_writer(attack, folder, "quantize", out, [PROGRAM, "quantize", "--model", model, "--out", out, "--format", "nvfp4"])
    read = run_program([PROGRAM, "generate", "--model", out, "--prompt", "a", "--tokens", "4"], LIMIT)
    if read.exit_code != 0:
        attack.fail(f"quantize: {read.error}")


def strike_writer(attack, folder, what, out, command):
    """The directory that a command makes is there whole or not at all."""
    seconds = seconds_of(command)
    whole = sorted(path.name for path in out.iterdir())
    for _ in range(COMMANDS):
        if attack.seconds_left() == 0:
            break
        shutil.rmtree(out, ignore_errors=True)
        kill_after(start(command), attack.random.uniform(0.2, 1) * seconds)
        attack.count += 1
        if out.exists() and sorted(path.name for path in out.iterdir()) != whole:
            attack.fail(f"{what}: {sorted(path.name for path in out.iterdir())} are there, expected all of {whole} or nothing")
    shutil.rmtree(out, ignore_errors=True)
    expect_success(command)
    if leftovers(folder):
        attack.fail(f"{what}: {leftovers(folder)} are left")


def main():
    attack = Attack("kills -9")
    use_library()
    import plimsoll.shard  # noqa: F401  children are forked from here

    attack.begin()
    with tempfile.TemporaryDirectory(prefix="plimsoll-kills-") as name:
        folder = Path(name)
        # Attacks that fork come first: a process that has computed on several threads is not forked.
        strike_saves(attack, folder, "saving the same step again", [7], 1000, SAVES)
        strike_saves(attack, folder, "saving a large step", [1, 2, 3], ELEMENTS, SAVES)
        strike_saves(attack, folder, "two ranks saving the same step again", [7], 1000, TWO_RANKS, ranks=2)
        for strike in (strike_training, strike_finetune, strike_consolidate, strike_gauge, strike_merge, strike_quantize):
            (folder / strike.__name__).mkdir()
            strike(attack, folder / strike.__name__)
    return attack.finish()


if __name__ == "__main__":
    sys.exit(main())
