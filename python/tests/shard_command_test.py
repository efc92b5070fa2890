"""`plimsoll train --shard ddp` under torchrun: the run of one process, by several."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import plimsoll
import pytest
from safetensors import safe_open

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
TEXT = pathlib.Path(__file__).resolve().parents[2] / "docs"
SHAPE = ["--layers=2", "--dim=32", "--heads=2", "--context=32", "--batch=12", "--warmup=2", "--eval-windows=12"]
PLAN = ["--steps=8", "--save-every=4", "--keep=9", "--threads=1", "--deadline=20"]

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


def torchrun(ranks, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launch, PROGRAM, "train", "--data", TEXT, *SHAPE, *PLAN, "--shard=ddp", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def train(ranks, out, *arguments):
    process = torchrun(ranks, "--out", out, *arguments)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, said + errors
    return said


def losses(out):
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(out, step):
    folder = next(path for path in out.iterdir() if path.is_dir() and path.name.endswith(str(step)))
    with safe_open(folder / "model.safetensors", "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


@pytest.mark.parametrize("recipe", ["fp32", "fp8"])
def test_ranks_have_the_losses_of_one_process(tmp_path, recipe):
    for ranks in (1, 2, 3):
        said = train(ranks, tmp_path / str(ranks), f"--recipe={recipe}")
        assert said.count("done: 8 steps") == 1 and said.count("configuration") == 1, "rank 0 speaks"
    alone = losses(tmp_path / "1")
    assert len(alone) == 8
    for ranks in ("2", "3"):
        # In FP8 a sum in another order may round an element to the next code.
        assert losses(tmp_path / ranks) == pytest.approx(alone, rel=1e-5 if recipe == "fp32" else 2e-3)


def test_resuming_has_the_bits_of_going_on(tmp_path):
    train(2, tmp_path / "whole", "--recipe=fp8")
    train(2, tmp_path / "parts", "--recipe=fp8")
    for path in (tmp_path / "parts").iterdir():
        if path.is_dir() and path.name.endswith("8"):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    train(2, tmp_path / "parts", "--recipe=fp8", "--resume")
    whole, parts = weights(tmp_path / "whole", 8), weights(tmp_path / "parts", 8)
    assert all((whole[name] == parts[name]).all() for name in whole)


def test_a_batch_that_ranks_cannot_share_is_one_clear_error(tmp_path):
    process = torchrun(2, "--out", tmp_path / "run", "--batch=3")
    errors = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert "--batch: expected a multiple of the 2 ranks, which share it, got 3" in errors


def test_a_killed_rank_ends_the_run_and_leaves_its_checkpoints(tmp_path):
    out = tmp_path / "run"
    process = torchrun(2, "--out", out, "--steps=100000", "--save-every=5")
    limit = time.monotonic() + 60
    while not any(out.glob("*5")) and time.monotonic() < limit:
        time.sleep(0.1)
    workers = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    process.communicate(timeout=40)
    assert process.returncode != 0
    done = len(losses(out))
    assert done >= 5
    train(2, out, f"--steps={done + 5}", "--resume")
