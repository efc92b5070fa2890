"""`--recipe auto` by several ranks: one decision for all of them, which a resumed run takes, too."""

import json
import pathlib
import shutil
import subprocess

import launched_ranks
import plimsoll
import pytest
import torch
from safetensors.torch import load_file

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
TEXT = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
SHAPE = ["--layers=2", "--dim=32", "--heads=2", "--context=32", "--batch=4", "--warmup=2", "--eval-windows=4"]
PLAN = ["--steps=24", "--save-every=12", "--keep=9", "--threads=1", "--deadline=120"]
# Bounds between the errors of this model's operands, and no patience, so that products go up and down in each half of the run.
RESTLESS = {"every": 1, "votes": 1, "ballots": 2, "quiet": 1, "window": 1, "demote_share": 1}
THREE = "e2m1>e4m3>bf16"
BOUNDS = {"e4m3>bf16": [1.1] * 3, THREE: [1.2, 1.2, 1.5]}

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


def train(out, *arguments, ranks=2, ladder="e4m3>bf16"):
    """Lines of the steps, timing left out, and what the ranks said."""
    recipe = json.dumps({"name": "auto", "ladder": ladder, "bound": BOUNDS[ladder], **RESTLESS})
    environment = launched_ranks.environment()
    command = [*launched_ranks.words(ranks), PROGRAM, "train", "--data", TEXT, "--out", out, "--recipe", recipe]
    command += [*SHAPE, *PLAN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    steps = [{name: line[name] for name in ("step", "loss", "grad_norm", "precision")} for line in lines if "loss" in line]
    return steps, done.stdout + done.stderr


def weights_of(out):
    """Tensors of the last checkpoint, by name."""
    whole = out / "whole.safetensors"
    said = subprocess.run([PROGRAM, "consolidate", out, "--out", whole], capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr
    return load_file(whole)


@pytest.mark.parametrize(
    ("shard", "ladder"),
    [*((shard, "e4m3>bf16") for shard in ("ddp", "zero1", "zero2", "fsdp")), ("zero2", THREE), ("fsdp", THREE)],
)
def test_ranks_take_the_same_decisions_and_so_does_a_resumed_run(tmp_path, shard, ladder):
    out = tmp_path / "run"
    # A rank with another format would bring another number of amaxes to the collective, which is an error.
    whole, _ = train(out, f"--shard={shard}", ladder=ladder)
    changes = [(line["step"], change) for line in whole for change in line["precision"].get("changes", [])]
    assert {change["to"] for _, change in changes} == set(ladder.split(">"))
    for is_later in (False, True):  # up and down
        assert len({change["to"] for step, change in changes if (step > 12) == is_later}) > 1
    shutil.rmtree(next(path for path in out.iterdir() if path.is_dir() and path.name.endswith("24")))
    steps, said = train(out, f"--shard={shard}", "--resume", ladder=ladder)
    assert "resuming after" in said
    assert steps == whole


@pytest.mark.parametrize(("ranks", "whole", "more"), [(1, "none", []), (2, "ddp", ["--checkpoint-activations"])])
def test_weights_in_parts_have_the_bits_and_the_decisions_of_whole_ones(tmp_path, ranks, whole, more):
    """The norm of all gradients is added up in another order: its last bits may differ, so that nothing may be clipped by it."""
    steps, weights = [], []
    for shard in (whole, "fsdp"):
        steps.append(train(tmp_path / shard, f"--shard={shard}", "--clip=1e9", *more, ranks=ranks)[0])
        weights.append(weights_of(tmp_path / shard))
    norms = [[line.pop("grad_norm") for line in lines] for lines in steps]
    # Sums of squares, in double, of as many elements as there are; the root halves their relative error.
    elements = sum(weight.numel() for weight in weights[0].values())
    assert norms[1] == pytest.approx(norms[0], rel=elements * 2**-53)
    assert {change["to"] for line in steps[0] for change in line["precision"].get("changes", [])} == {"e4m3", "bf16"}
    assert steps[1] == steps[0] and weights[1].keys() == weights[0].keys()
    assert all(torch.equal(weights[1][name], weight) for name, weight in weights[0].items())
