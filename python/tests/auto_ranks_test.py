"""`--recipe auto` by several ranks: one decision for all of them, which a resumed run takes, too."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import plimsoll
import pytest

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
TEXT = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
SHAPE = ["--layers=2", "--dim=32", "--heads=2", "--context=32", "--batch=4", "--warmup=2", "--eval-windows=4"]
PLAN = ["--steps=24", "--save-every=12", "--keep=9", "--threads=1", "--deadline=60"]
# Bounds between the errors of this model's operands, and no patience, so that products go up and down in each half of the run.
RESTLESS = json.dumps(
    {"name": "auto", "every": 1, "votes": 1, "ballots": 2, "quiet": 1, "window": 1, "bound": [1.1] * 3, "demote_share": 1}
)

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


def train(out, *arguments):
    """Lines of the steps, timing left out, and what the ranks said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node=2"]
    command = [*launch, PROGRAM, "train", "--data", TEXT, "--out", out, "--recipe", RESTLESS, *SHAPE, *PLAN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    steps = [{name: line[name] for name in ("step", "loss", "grad_norm", "precision")} for line in lines if "loss" in line]
    return steps, done.stdout + done.stderr


@pytest.mark.parametrize("shard", ["ddp", "zero1", "zero2"])
def test_ranks_take_the_same_decisions_and_so_does_a_resumed_run(tmp_path, shard):
    out = tmp_path / "run"
    # A rank with another format would bring another number of amaxes to the collective, which is an error.
    whole, _ = train(out, f"--shard={shard}")
    changes = [(line["step"], change) for line in whole for change in line["precision"].get("changes", [])]
    for is_later in (False, True):
        assert {change["to"] for step, change in changes if (step > 12) == is_later} == {"e4m3", "bf16"}
    shutil.rmtree(next(path for path in out.iterdir() if path.is_dir() and path.name.endswith("24")))
    steps, said = train(out, f"--shard={shard}", "--resume")
    assert "resuming after" in said
    assert steps == whole
