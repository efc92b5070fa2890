"""Sizes that config.json or state.json make up are compared with the tensors before there is a model: one line, no memory."""

import hashlib
import json
import resource
import subprocess
from typing import Any

import pytest
import torch
from plimsoll.t5 import T5ForConditionalGeneration
from program import measured
from t5_models import make, save

MEMORY = 1 << 30  # bytes that a command may touch: libraries, and room to spare


def run(*arguments, limit=MEMORY):
    """(exit code, stderr), of a process that must not touch more memory than `limit`."""
    code, memory, seconds, said = measured(*arguments)
    assert memory < limit, memory
    assert seconds < 60
    return code, said


def expect_refused(expected, *arguments, code=1):
    found, said = run(*arguments)
    assert found == code and said.startswith("plimsoll: ") and said.count("\n") == 1, said
    assert expected in said, said


RUN = "--layers=1 --dim=16 --heads=2 --context=8 --batch=2 --eval-windows=2".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "data").write_bytes(b"abcdefgh" * 500)
    code, said = run(
        "train",
        *RUN,
        "--steps=2",
        "--data",
        folder / "data",
        "--out",
        folder / "out",
    )
    assert code == 0, said
    return folder / "out"


def with_shape(trained, folder, **changes):
    """A copy of the run whose state.json says something else, under a digest that fits."""
    subprocess.run(["cp", "-r", trained, folder / "run"], check=True)
    (step,) = (folder / "run").glob("step-*")
    state = json.loads((step / "state.json").read_text())
    state["shape"].update(changes)
    (step / "state.json").write_text(text := json.dumps(state))
    manifest = json.loads((step / "manifest.json").read_text())
    manifest["files"]["state.json"] = {"bytes": len(text), "sha256": [hashlib.sha256(text.encode()).hexdigest()]}
    (step / "manifest.json").write_text(json.dumps(manifest))
    return folder / "run"


SHAPES: dict[str, Any] = {
    "layers": ({"layers": 10**9}, "expected the tensors of 1000000000 layers"),
    "some more layers": ({"layers": 3}, "expected a tensor 'blocks.1."),
    "width": ({"dim": 2**40}, "expected 'token_embedding.weight' of shape [256, 1099511627776], got [256, 16]"),
    "context": ({"context": 2**62}, "expected 'position_embedding.weight' of shape"),
    "a head": ({"own_head": False}, "unknown tensor 'head.weight'"),
    "another norm": ({"rms_norm": True}, "unknown tensor"),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("command", ["generate", "gauge"])
def test_a_checkpoint_is_compared_with_its_state(command, name, trained, tmp_path):
    changes, expected = SHAPES[name]
    folder = with_shape(trained, tmp_path, **changes)
    arguments = ["--checkpoint", folder] if command == "generate" else ["--model", folder, "--out", tmp_path / "gauged"]
    expect_refused(expected, command, *arguments)


def test_the_other_readers_of_checkpoints_do_not_make_a_model(trained, tmp_path):
    folder = with_shape(trained, tmp_path, layers=10**9)
    for arguments in (["inspect", folder], ["consolidate", folder, "--out", tmp_path / "whole"]):
        code, said = run(*arguments)
        assert code == 0, said
    expect_refused(
        "expected a run with shape",
        "train",
        *RUN,
        "--steps=4",
        "--data",
        trained.parent / "data",
        "--out",
        folder,
        "--resume",
        code=2,
    )


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


CONFIGS = {
    "layers": ({"num_layers": 2**24}, "num_layers: expected at most "),
    "decoder's layers": ({"num_decoder_layers": 2**24}, "num_decoder_layers: expected at most "),
    "some more layers": ({"num_layers": 5}, "missing: encoder.block.3.layer.0.SelfAttention.k.weight"),
    "words": ({"vocab_size": 2**24}, "shared.weight [130, 32] instead of [16777216, 32]"),
    "hidden": ({"d_ff": 2**24}, "wo.weight [32, 48] instead of [32, 16777216]"),
    "heads": ({"num_heads": 2**24, "d_kv": 2**24}, "instead of [281474976710656, 32]"),
    "beyond all": ({"num_layers": 2**40}, "num_layers"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_t5_is_compared_with_its_config(name, tmp_path):
    changes, expected = CONFIGS[name]
    folder = edited(save(make("v1.1"), tmp_path / "model"), **changes)
    (tmp_path / "in.jsonl").write_text('{"input_ids": [5, 1]}\n')
    expect_refused(expected, "t5", "encode", "--model", folder, "--input", tmp_path / "in.jsonl")
    expect_refused(expected, "gauge", "--model", folder, "--out", tmp_path / "gauged")
    expect_refused(expected, "parity", "--model", folder, "--data", tmp_path / "in.jsonl")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((RuntimeError, ValueError), match=expected.split(":")[0].replace("[", r"\[").replace("]", r"\]")):
        T5ForConditionalGeneration.from_pretrained(folder, torch.float32)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY // 1024
