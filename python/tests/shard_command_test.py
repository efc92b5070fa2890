"""`plimsoll train --shard`: the run of one process, by several."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import launched_ranks
import plimsoll
import pytest
from rounding import approx
from safetensors import safe_open

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
TEXT = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
SHAPE = ["--layers=2", "--dim=32", "--heads=2", "--context=32", "--batch=12", "--warmup=2", "--eval-windows=12"]
PLAN = ["--steps=8", "--save-every=4", "--keep=9", "--threads=1", "--deadline=120"]

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node=2")


def started(ranks, *arguments, program=(PROGRAM,), launch=None):
    if not any(argument.startswith("--shard") for argument in map(str, arguments)):
        arguments += ("--shard=ddp",)
    command = [*(launch or launched_ranks.words(ranks)), *program, "train", "--data", TEXT, *SHAPE, *PLAN, *arguments]
    environment = launched_ranks.environment()
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def train(ranks, out, *arguments):
    process = started(ranks, "--out", out, *arguments)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, said + errors
    return said


def losses(out):
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(out, step):
    folder = next(path for path in out.iterdir() if path.is_dir() and path.name.endswith(str(step)))
    whole = out / f"{step}.safetensors"
    whole.unlink(missing_ok=True)
    said = subprocess.run([PROGRAM, "consolidate", folder, "--out", whole], capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    with safe_open(whole, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dictionary


def remove_checkpoint(out, step):
    for path in out.iterdir():
        if path.is_dir() and path.name.endswith(str(step)):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


def same_sums(expected):
    """Losses in FP32 but for the order in which 12 windows are added up, in each of 8 steps."""
    return approx(expected, 8 * 12)


# The whole batch by one process: its losses, for each recipe.
@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    found = {}
    for recipe in ("fp32", "fp8"):
        out = tmp_path_factory.mktemp("alone")
        train(1, out, f"--recipe={recipe}")
        found[recipe] = losses(out)
        assert len(found[recipe]) == 8
    return found


@pytest.mark.parametrize(
    ("shard", "ranks", "recipe"),
    [
        ("ddp", 2, "fp32"),
        ("ddp", 3, "fp8"),
        ("zero1", 2, "fp8"),
        ("zero1", 3, "fp32"),
        ("zero2", 2, "fp8"),
        ("zero2", 3, "fp32"),
        ("fsdp", 2, "fp8"),
        ("fsdp", 3, "fp32"),
    ],
)
def test_ranks_have_the_losses_of_one_process(tmp_path, alone, shard, ranks, recipe):
    halves = ["--accumulate=2", "--batch=6"] if recipe == "fp32" else []
    said = train(ranks, tmp_path, f"--recipe={recipe}", f"--shard={shard}", *halves)
    assert said.count("done: 8 steps") == 1 and said.count("configuration") == 1, "rank 0 speaks"
    # In FP8 a sum in another order may round an element to the next code, 2^-3 of it, in one of the 12 * 32 tokens.
    assert losses(tmp_path) == (same_sums(alone[recipe]) if recipe == "fp32" else pytest.approx(alone[recipe], rel=2**-3 / 384))


def test_ranks_of_torchrun_meet_again_for_each_recipe_of_a_comparison(tmp_path):
    command = [*TORCHRUN, PROGRAM, "compare", "--recipes=fp32,bf16,fp8", "--shard=ddp", "--out", tmp_path / "runs", "--steps=2"]
    command += ["--data", TEXT, *SHAPE, *(option for option in PLAN if "steps" not in option)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, env=launched_ranks.environment())
    assert said.returncode == 0, said.stdout + said.stderr
    results = json.loads((tmp_path / "runs" / "compare.json").read_text())["results"]
    assert [result["recipe"] for result in results] == ["fp32", "bf16", "fp8"]


@pytest.mark.parametrize("mode", ["trap", "shadow"])
def test_watched_ranks_end_well(tmp_path, mode):
    train(2, tmp_path, "--recipe=fp8", "--shard=fsdp", f"--watch={mode}", "--eval-every=4")
    assert len(losses(tmp_path)) == 8
    watched = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert watched and all(slot["non_finite"] == 0 for slot in watched)


def test_another_compression_is_named_when_a_run_goes_on(tmp_path):
    train(2, tmp_path, "--recipe=fp32", "--compress=fp8")
    remove_checkpoint(tmp_path, 8)
    process = started(2, "--out", tmp_path, "--recipe=fp32", "--compress=none", "--resume")
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, said + errors
    assert '--compress was "fp8", from here on it is "none"' in said + errors


@pytest.mark.parametrize(
    ("shard", "more"),
    [
        ("ddp", ["--recipe=fp8", "--compress=fp8"]),
        ("zero2", ["--recipe=fp8", "--compress=fp8"]),
        ("zero2", ["--recipe=fp16", "--async-save"]),
        ("zero1", ["--recipe=fp16", "--optimizer-state=bf16", "--loss-scale-hysteresis=2"]),
        ("fsdp", ["--recipe=fp8", "--optimizer-state=bf16", "--offload=disk"]),
        ("zero2", ["--recipe=fp8", "--optimizer-state=8bit", "--masters=split"]),
        ("fsdp", ["--recipe=fp8", "--optimizer-state=8bit", "--masters=none", "--offload=disk"]),
        ("fsdp", []),
        ("fsdp", ["--recipe=fp16", "--loss-scale=auto"]),
    ],
)
def test_resuming_has_the_bits_of_going_on(tmp_path, shard, more):
    arguments = [f"--shard={shard}", *(more or ["--recipe=fp8"])]
    train(2, tmp_path / "whole", *arguments)
    train(2, tmp_path / "parts", *arguments)
    remove_checkpoint(tmp_path / "parts", 8)
    train(2, tmp_path / "parts", *arguments, "--resume")
    whole, parts = weights(tmp_path / "whole", 8), weights(tmp_path / "parts", 8)
    assert whole.keys() == parts.keys() and all((whole[name] == parts[name]).all() for name in whole)


NARROW = ["--recipe=bf16", "--optimizer-state=8bit"]


@pytest.mark.parametrize("masters", ["split", "none"])
def test_narrow_states_have_the_same_bits_however_ranks_share_them(tmp_path, masters):
    arguments = [*NARROW, f"--masters={masters}"]
    runs = [(2, "ddp"), (2, "zero1"), (2, "zero2"), (2, "fsdp"), (1, "none"), (1, "fsdp")]
    for ranks, shard in runs:
        train(ranks, tmp_path / f"{shard}-{ranks}", f"--shard={shard}", *arguments)
    for ranks in (1, 2):
        whole, *others = [weights(tmp_path / f"{shard}-{count}", 8) for count, shard in runs if count == ranks]
        for other in others:
            assert whole.keys() == other.keys() and all((whole[name] == other[name]).all() for name in whole)


def test_another_number_of_ranks_goes_on_with_narrow_states(tmp_path):
    arguments = [*NARROW, "--masters=split", "--shard=fsdp"]
    train(3, tmp_path / "parts", *arguments)
    train(1, tmp_path / "whole", *arguments)
    remove_checkpoint(tmp_path / "parts", 8)
    train(2, tmp_path / "parts", *arguments, "--resume")
    # The mean of 12 windows in another order, of BF16 values.
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=2**-8)


def test_another_number_of_ranks_goes_on_and_a_damaged_shard_is_named(tmp_path, alone):
    train(3, tmp_path, "--shard=zero1", "--recipe=fp32")
    shard = next(tmp_path.glob("*8/optimizer.rank-00002.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    process = started(2, "--out", tmp_path, "--shard=zero2", "--recipe=fp32", "--resume")
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "step-00000008/optimizer.rank-00002.safetensors: expected" in errors and "step-00000004" in errors
    assert losses(tmp_path) == same_sums(alone["fp32"])
    remove_checkpoint(tmp_path, 8)
    train(2, tmp_path, "--shard=fsdp", "--recipe=fp32", "--resume")
    assert losses(tmp_path) == same_sums(alone["fp32"])
    remove_checkpoint(tmp_path, 8)
    train(1, tmp_path, "--shard=none", "--recipe=fp32", "--resume")
    assert losses(tmp_path) == same_sums(alone["fp32"])


def test_a_batch_that_ranks_cannot_share_is_one_clear_error(tmp_path):
    process = started(2, "--out", tmp_path / "run", "--batch=3")
    errors = process.communicate(timeout=300)[1]
    assert process.returncode != 0
    assert "--batch: expected a multiple of the 2 ranks, which share it, got 3" in errors


def test_ranks_that_were_started_differently_are_one_clear_error(tmp_path):
    recipe = ("bash", "-c", f'[ $RANK = 1 ] && other=--recipe=bf16; exec "{PROGRAM}" "$@" $other', "rank")
    process = started(2, "--out", tmp_path / "run", program=recipe)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode != 0
    assert '--recipe: expected "fp8" on rank 1, as on rank 0, got "bf16"' in errors


def test_a_rank_that_stays_alone_says_so_without_a_stack_trace(tmp_path):
    with launched_ranks.reserved_port() as port:
        environment = launched_ranks.rank_environment(0, 2, port)
        command = [PROGRAM, "train", "--data", TEXT, "--out", tmp_path / "out", "--shard", "ddp", "--deadline", "2"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert result.returncode == 1
    assert "plimsoll: connecting on rank 0 of 2 failed" in result.stderr and "rank 1 has ended" in result.stderr, result.stderr
    assert "frame #" not in result.stderr, result.stderr


def test_a_rank_whose_store_is_killed_says_so_in_one_line(tmp_path):
    out = tmp_path / "run"
    with launched_ranks.reserved_port() as port:
        command = [
            PROGRAM,
            "train",
            "--data",
            TEXT,
            *SHAPE,
            *PLAN,
            "--steps=10000000",
            "--save-every=5",
            "--shard=ddp",
            "--out",
            out,
        ]
        first, second = (
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=launched_ranks.rank_environment(rank, 2, port))
            for rank in range(2)
        )
        limit = time.monotonic() + 300
        while not any(out.glob("*5")):
            assert first.poll() is None and time.monotonic() < limit
            time.sleep(0.1)
        first.kill()
        errors = second.communicate(timeout=300)[1]
        first.communicate()
    assert second.returncode == 1
    (line,) = errors.splitlines()
    assert line.startswith("plimsoll: ") and "the process that holds the store" in line and "typically" not in line


def test_a_rank_killed_under_torchrun_ends_the_run_and_leaves_its_checkpoints(tmp_path):
    out = tmp_path / "run"
    process = started(2, "--out", out, "--steps=10000000", "--save-every=5", launch=TORCHRUN)
    limit = time.monotonic() + 300
    while not any(out.glob("*5")):
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.1)
    workers = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode != 0
    done = len(losses(out))
    assert done >= 5
    train(2, out, f"--steps={done + 5}", "--resume")
