"""No input of a command or of the package may be a named pipe or a device: it would wait, or read for ever. One line says so at once."""

import os
import pathlib
import subprocess

import plimsoll
import pytest
from plimsoll.report.checkpoints import read_checkpoint
from plimsoll.report.runs import read_runs
from plimsoll.shard import from_safetensors
from t5_models import make, save

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
SECONDS = 300.0  # of a loaded machine; what waits, waits for ever
OTHERS = ["pipe", "/dev/zero"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    save(make("v1.1"), folder / "model")
    (folder / "text").write_text("some text\n" * 200)
    os.mkfifo(folder / "pipe")
    run(
        "train",
        "--data",
        folder / "text",
        "--out",
        folder / "run",
        "--steps",
        1,
        "--layers",
        1,
        "--dim",
        32,
        "--heads",
        2,
        "--context",
        16,
        "--batch",
        1,
        "--recipe",
        "fp32",
    )
    return folder


def run(*words):
    return subprocess.run(
        [PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
    )


def with_other(folder, tmp_path, tree, name, other):
    """A copy of the tree, by links, in which one file is another kind of file."""
    copy = tmp_path / "copy"
    for path in (folder / tree).rglob("*"):
        target = copy / path.relative_to(folder / tree)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(path, target)
    (copy / name).unlink(missing_ok=True)
    os.symlink(folder / "pipe" if other == "pipe" else other, copy / name)
    return copy


COMMANDS = {
    "train --data": ["train", "--data", "{}", "--out", "{out}"],
    "train --config": ["train", "--config", "{}", "--data", "{text}", "--out", "{out}"],
    "compare --config": ["compare", "--config", "{}", "--data", "{text}", "--out", "{out}"],
    "generate --checkpoint": ["generate", "--checkpoint", "{}"],
    "inspect": ["inspect", "{}"],
    "consolidate": ["consolidate", "{}", "--out", "{out}"],
    "t5 --model": ["t5", "generate", "--model", "{}", "--input", "{text}"],
    "t5 --input": ["t5", "generate", "--model", "{model}", "--input", "{}"],
    "gauge --model": ["gauge", "--model", "{}", "--out", "{out}"],
    "gauge --calibrate": ["gauge", "--model", "{model}", "--calibrate", "{}", "--out", "{out}"],
    "gauge --calibrate of a Gpt": ["gauge", "--model", "{run}", "--calibrate", "{}", "--out", "{out}"],
    "parity --data": ["parity", "--model", "{model}", "--data", "{}"],
    "audit --diff": ["audit", "--diff", "{}", "{}"],
    "logprobs --data": ["logprobs", "--model", "{run}", "--data", "{}"],
    "logprobs --diff": ["logprobs", "--diff", "{}", "{}"],
    "mmlu --data": ["mmlu", "--model", "{model}", "--data", "{}"],
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_takes_another_kind_of_file(folder, tmp_path, name, other):
    given = folder / "pipe" if other == "pipe" else other
    places = {"text": folder / "text", "model": folder / "model", "run": folder / "run", "out": tmp_path / "out"}
    done = run(*[word.replace("{}", str(given)).format(**places) for word in COMMANDS[name]])
    assert done.returncode in (1, 2), done
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("command", ["generate", "logprobs", "convert", "quantize", "parity", "gauge", "audit"])
def test_a_file_in_the_place_of_a_model_is_told_what_was_expected(command, folder, tmp_path):
    more = {"logprobs": ["--data", folder / "text"], "parity": ["--data", folder / "text"]}
    more |= {name: ["--out", tmp_path / "out"] for name in ("convert", "quantize", "gauge")}
    done = run(command, "--model", folder / "text", *more.get(command, ()))
    if command in ("quantize", "parity"):  # which take no run in its place
        told = f"plimsoll: --model: expected a Hugging Face directory, got {folder / 'text'}, which is no directory\n"
        assert (done.returncode, done.stderr) == (2, told)
        return
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith(f"plimsoll: {folder / 'text'}: expected a"), done


T5, STEP = ["t5", "generate", "--model", "{}", "--input", "x"], ["generate", "--checkpoint", "{}"]
FILES = [("model", name, T5) for name in ("config.json", "model.safetensors", "spiece.model")]
FILES += [("run/step-00000001", name, STEP) for name in ("state.json", "manifest.json", "model.safetensors")]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(("tree", "name", "command"), FILES)
def test_no_file_of_a_directory_is_another_kind_of_file(folder, tmp_path, tree, name, command, other):
    copy = with_other(folder, tmp_path, tree, name, other)
    done = run(*[word.replace("{}", str(copy)) for word in command])
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert "expected" in done.stderr, done.stderr


def test_questions_that_are_a_pipe_are_an_error(folder, tmp_path):
    (tmp_path / "test").mkdir()
    os.symlink(folder / "pipe", tmp_path / "test" / "history_test.csv")
    done = run("mmlu", "--model", folder / "model", "--data", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done


@pytest.mark.parametrize("read", [read_runs, lambda path: read_runs([path]), from_safetensors])
@pytest.mark.parametrize("other", OTHERS)
def test_the_package_reads_no_other_kind_of_file(folder, tmp_path, read, other):
    given = folder / "pipe" if other == "pipe" else pathlib.Path(other)
    arguments = (given, tmp_path / "run") if read is from_safetensors else (given,)
    with pytest.raises((ValueError, FileNotFoundError), match="expected"):
        read(*arguments)


def test_an_index_and_a_shard_that_are_pipes_are_errors(folder, tmp_path):
    os.symlink(folder / "pipe", tmp_path / "model.safetensors.index.json")
    with pytest.raises(ValueError, match="expected a regular file, got a pipe"):
        from_safetensors(tmp_path, tmp_path / "run")
    (tmp_path / "model.safetensors.index.json").unlink()
    os.symlink(folder / "pipe", tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="expected a regular file, got a pipe"):
        from_safetensors(tmp_path, tmp_path / "run")


def test_a_log_beyond_reason_is_refused_unread(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}")
    os.truncate(tmp_path / "train.jsonl", 1 << 40)  # sparse
    with pytest.raises(ValueError, match="expected a file of at most"):
        read_runs(tmp_path)
    os.truncate(tmp_path / "train.jsonl", 0)
    assert read_checkpoint(tmp_path / "train.jsonl") is None
