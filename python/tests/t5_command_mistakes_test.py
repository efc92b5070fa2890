"""Answers of `plimsoll t5` to broken directories and to bad arguments: one line, and the exit code."""

import json
import re

import pytest
import torch
from t5_command import copy_of, edit_tensors, new_model, run, write_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    new_model(folder)
    return folder


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def edit_pieces(folder, pattern, replacement):
    file = folder / "spiece.model"
    edited, count = re.subn(pattern, lambda _: replacement, file.read_bytes(), count=1)
    assert count == 1
    file.write_bytes(edited)


def truncate(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def drop_two(tensors):
    del tensors["shared.weight"], tensors["encoder.block.1.layer.0.SelfAttention.q.weight"]


def in_int8(tensors):
    tensors["encoder.final_layer_norm.weight"] = tensors["encoder.final_layer_norm.weight"].to(torch.int8)


def shard(folder, weight_map):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


BROKEN = {
    "truncated": (truncate, 1, "truncated?"),
    "missing keys": (
        lambda folder: edit_tensors(folder, drop_two),
        1,
        "missing: encoder.block.1.layer.0.SelfAttention.q.weight, shared.weight",
    ),
    "fewer layers": (lambda folder: edit_config(folder, num_layers=2), 1, "unknown: encoder.block.2."),
    "another width": (lambda folder: edit_config(folder, d_ff=49), 1, "[48, 32] instead of [49, 32]"),
    "another kind": (lambda folder: edit_config(folder, model_type="bert"), 1, "model_type: expected t5, mt5 or umt5"),
    "no number": (lambda folder: edit_config(folder, d_model="x"), 1, "d_model: expected an integer"),
    "no size": (lambda folder: edit_config(folder, num_heads=0), 1, "num_heads"),
    "beyond memory": (lambda folder: edit_config(folder, d_model=2**40), 1, "d_model"),
    "no activation": (lambda folder: edit_config(folder, feed_forward_proj="gated-tanh"), 1, "feed_forward_proj"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), 1, "expected valid JSON"),
    "no tokenizer": (lambda folder: (folder / "spiece.model").unlink(), 1, "expected spiece.model"),
    "another tokenizer": (lambda folder: (folder / "spiece.model").write_text("no model"), 1, "expected a sentencepiece model"),
    "a piece of a zero byte": (
        lambda folder: edit_pieces(folder, rb"\n\x01[ -~]\x15", b"\n\x01\x00\x15"),
        1,
        "expected a sentencepiece model",
    ),
    "a number beyond doubles": (
        lambda folder: (folder / "config.json").write_text('{"d_model": 1e400}'),
        1,
        "expected numbers that a double holds",
    ),
    "no architecture": (
        lambda folder: edit_config(folder, tie_word_embeddings="maybe"),
        1,
        "tie_word_embeddings: expected true or false",
    ),
    "ids beyond the vocabulary": (lambda folder: edit_config(folder, eos_token_id=10**6), 1, "ids of pad, eos and decoder start"),
    "codes": (lambda folder: edit_tensors(folder, in_int8), 1, "expected F32, BF16 or F16, got I8"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), 1, "expected model.safetensors or"),
    "a lost shard": (
        lambda folder: shard(folder, {"shared.weight": "lost.safetensors"}),
        1,
        "expected the files lost.safetensors",
    ),
    "a shard elsewhere": (
        lambda folder: shard(folder, {"shared.weight": "../model.safetensors"}),
        1,
        "expected a file beside the index",
    ),
    "no index": (lambda folder: shard(folder, ["shared.weight"]), 1, "expected an object with a weight_map"),
    "too many tokens": (
        lambda folder: (folder / "tokenizer_config.json").write_text('{"extra_ids": 400}'),
        1,
        "expected at most the model's vocabulary",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_directories_are_one_line(model, name, tmp_path):
    damage, code, expected = BROKEN[name]
    folder = copy_of(model, tmp_path / "model")
    damage(folder)
    done = run("generate", "--model", folder, "--input", "text")
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "t5: expected "),
        (["--model", "{model}", "--input", "x"], 2, "t5: expected generate"),
        (["generte"], 2, "expected generate"),
        (["generate"], 2, "expected --model DIR"),
        (["generate", "--model", "/nowhere", "--input", "x"], 2, "--model: expected a file or directory"),
        (["generate", "--model", "{model}"], 2, "expected --input TEXT|FILE"),
        (["score", "--model", "{model}", "--input", "x"], 2, "expected --target"),
        (["generate", "--model", "{model}", "--input", "x", "--beams", "0"], 2, "--beams"),
        (["generate", "--model", "{model}", "--input", "x", "--beams", "2", "--stream"], 2, "stream"),
        (["generate", "--model", "{model}", "--input", "x", "--beams", "2", "--sample"], 2, "--beams or --sample"),
        (["generate", "--model", "{model}", "--input", "x", "--dtype", "fp4"], 2, "--dtype"),
        (["generate", "--model", "{model}", "--input", "{empty}"], 1, "expected at least one line"),
        (["generate", "--model", "{model}", "--input", "{bad}"], 1, "line 1: input_ids: expected an array of ids from 0 to 527"),
        (["generate", "--model", "{model}", "--input", "{both}"], 1, "line 1: expected a text or input_ids, got both"),
        (["encode", "--model", "{model}", "--input", "x", "--out", "/nowhere/out"], 1, "/nowhere/out"),
    ],
)
def test_mistakes_are_one_line(model, arguments, code, expected, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    write_ids(tmp_path / "bad.jsonl", [[528]])
    (tmp_path / "both.jsonl").write_text('{"text": "a", "input_ids": [5]}\n')
    places = {
        f"{{{name}}}": tmp_path / file for name, file in (("empty", "empty.txt"), ("bad", "bad.jsonl"), ("both", "both.jsonl"))
    }
    places["{model}"] = model
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr, done.stderr


def test_a_stream_of_ids_needs_a_tokenizer(model, tmp_path):
    folder = copy_of(model, tmp_path / "model")
    (folder / "spiece.model").unlink()
    arguments = ["generate", "--model", folder, "--input", write_ids(tmp_path / "in.jsonl", [[5, 6, 1]]), "--max-new-tokens", 3]
    assert run(*arguments).returncode == 0
    done = run(*arguments, "--stream")
    assert (done.returncode, done.stdout) == (1, "")
    what = "which makes of ids the texts that are streamed"
    assert done.stderr == f"plimsoll: {folder}: expected spiece.model, found none, {what}\n"


def test_a_prompt_beyond_memory_is_one_line(model, tmp_path):
    """Beside a shorter one, in FP16, whose mask has an element for each query and key: 12 TB."""
    file = write_ids(tmp_path / "long.jsonl", [[5] * 1_000_000, [5]])
    done = run("encode", "--model", model, "--input", file, "--dtype", "fp16")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert "memory" in done.stderr, done.stderr
