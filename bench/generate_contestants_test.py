"""Contestants of generate.py on a tiny model, and the bytes that it holds their steps against."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import generate
import generate_checkpoint
import pytest
from generate import COMPARISON

BENCH = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("PLIMSOLL_BUILD", BENCH.parent / "build"))
TINY = {"vocab_size": 384, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "max_position_embeddings": 768}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    generate_checkpoint.write_random(directory, **TINY)
    return directory


def test_a_step_is_held_against_the_matrices_that_it_reads(tiny, tmp_path):
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
    matrices = 384 * 64 + 2 * layer
    assert generate_checkpoint.sizes_of(tiny) == (matrices + 5 * 64, matrices, 384 * 64)
    generate_checkpoint.write_random(tmp_path, **TINY, tie_word_embeddings=False)
    assert generate_checkpoint.sizes_of(tmp_path) == (matrices + 384 * 64 + 5 * 64, matrices, 384 * 64)


def test_fp16_is_held_against_a_read_of_as_many_bytes():
    rows = COMPARISON.rows_of({"stream-128": {"hf-bf16": [4.0], "llama.cpp-q8_0": [3.0], "fp16": [2.0], "read-bf16": [1.0]}})
    found = {row["name"]: row for row in rows}
    assert found["fp16"]["share_of_reading"] == 0.5
    assert (found["fp16"]["peer"], found["fp16"]["speed_over_peer"]) == ("llama.cpp-q8_0", 1.5)


def test_contestants_write_the_same_tokens(tiny):
    requests = "".join(json.dumps(request) + "\n" for request in ({"read": 40, "write": 1}, {"read": 1, "write": 24}))
    answers = []
    for library in ("hf", "plimsoll"):
        command = [sys.executable, BENCH / "generate_worker.py", f"--library={library}", f"--directory={tiny}"]
        command += ["--dtype=fp32", "--threads=1"]
        result = subprocess.run(list(map(str, command)), input=requests, capture_output=True, text=True, check=True)
        ready, *answered = map(json.loads, result.stdout.splitlines())
        assert ready["first_token_seconds"] > 0 and all(answer["seconds"] > 0 for answer in answered)
        answers.append([answer["tokens"] for answer in answered])
    assert answers[0] == answers[1]
    assert [len(tokens) for tokens in answers[0]] == [1, 24]


def test_a_run_writes_a_row_for_each_contestant_of_each_work(tiny, tmp_path):
    command = [sys.executable, BENCH / "generate.py", "--model", tiny, "--rounds", "1", "--threads", "1", "--no-starts"]
    command += ["--contestants", "hf-bf16,fp8", "--json", tmp_path / "rows.json", "--build", BUILD]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    document = json.loads((tmp_path / "rows.json").read_text())
    expected = [(work, name) for work in ("prompt-512", "stream-128") for name in ("hf-bf16", "fp8")]
    assert [(row["work"], row["name"]) for row in document["rows"]] == expected
    assert all(row["speed_over_peer"] > 0 and row["peer"] == "hf-bf16" for row in document["rows"])
    assert all(work in result.stdout for work, _ in expected)


def test_llama_cpp_reads_the_weights_of_the_model_that_is_timed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(generate_checkpoint, "write_gguf", lambda model, file, kind: file.write_text(f"{model} {kind}"))
    other = tmp_path / "other"
    generate_checkpoint.write_random(other, **TINY)
    (tmp_path / "kept").mkdir()

    def text_of(model):
        args = argparse.Namespace(model=str(model), contestants=["hf-bf16", "llama.cpp-q8_0"])
        checkpoints = generate.write_checkpoints(tmp_path / "kept", args)
        return (checkpoints.directories["llama.cpp"] / "q8_0.gguf").read_text()

    assert [text_of(model) for model in (tiny, other, tiny)] == [f"{model} q8_0" for model in (tiny, other, tiny)]
    folder = generate_checkpoint.gguf_folder(other, tmp_path)
    os.utime(other / "model.safetensors", ns=(1, 1))  # as writing other weights of the same size does
    assert generate_checkpoint.gguf_folder(other, tmp_path) != folder


def test_a_checkpoint_that_was_not_written_to_its_end_is_written_again(tmp_path, monkeypatch):
    def end_early(directory):
        directory.mkdir()
        (directory / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "SMOLLM2", tmp_path / "none")
    monkeypatch.setattr(generate_checkpoint, "write_random", end_early)
    with pytest.raises(KeyboardInterrupt):
        generate.directory_of_model(None, tmp_path)
    monkeypatch.setattr(generate_checkpoint, "write_random", Path.mkdir)
    assert list(generate.directory_of_model(None, tmp_path).iterdir()) == []
