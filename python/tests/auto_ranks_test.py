"""`--recipe auto` by several ranks: one decision for all of them, which a resumed run takes, too."""

import json
import os
import pathlib
import subprocess
import sys

import plimsoll
import pytest

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
TEXT = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
SHAPE = ["--layers=2", "--dim=32", "--heads=2", "--context=32", "--batch=4", "--warmup=2", "--eval-windows=4"]
PLAN = ["--steps=24", "--save-every=12", "--keep=9", "--threads=1", "--deadline=60", "--shard=ddp"]
# Bounds between the errors of this model's operands, so that some products are promoted and others are not.
RESTLESS = json.dumps(
    {"name": "auto", "every": 2, "votes": 1, "ballots": 2, "quiet": 3, "window": 4, "bound": [1.02] * 3, "demote_share": 1}
)

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


def train(out, *arguments):
    """Lines of the steps, timing left out."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node=2"]
    command = [*launch, PROGRAM, "train", "--data", TEXT, "--out", out, "--recipe", RESTLESS, *SHAPE, *PLAN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", "loss", "grad_norm", "precision")} for line in lines if "loss" in line]


def test_ranks_take_the_same_decisions_and_so_does_a_resumed_run(tmp_path):
    # A rank with another format would bring another number of amaxes to the collective, which is an error.
    whole = train(tmp_path / "whole")
    changes = [change for line in whole for change in line["precision"].get("changes", [])]
    assert "bf16" in {change["to"] for change in changes}
    out = tmp_path / "cut"
    train(out)
    last = next(path for path in out.iterdir() if path.is_dir() and path.name.endswith("24"))
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    assert train(out, "--resume") == whole
