"""A file that another process shortens while it is mapped is one error, not the end of the process."""

import os
import subprocess
import time
from functools import partial

import plimsoll
import pytest
import tiny_llama
import torch
from chat_template_test import TEMPLATES
from plimsoll.shard import Checkpoint, CheckpointSaver, open_checkpoint, to_distributed_checkpoint, to_safetensors
from plimsoll.t5 import T5ForConditionalGeneration
from t5_models import inputs, make, save

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
LOST = "expected the bytes that it had when it was opened, got none"


def shorten(file, size=4096):
    os.truncate(file, size)


@pytest.mark.parametrize("dtype", [None, "fp8"])
@torch.no_grad()
def test_a_model_whose_file_is_shortened_raises_until_it_is_gone(dtype, tmp_path, capfd):
    theirs = make("v1.1")
    ids, mask = inputs(theirs, [9, 7])
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    other = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path / "other"), torch.bfloat16)
    ours = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path / "model"), dtype)
    shorten(tmp_path / "model" / "model.safetensors")
    for _ in range(2):
        for call in (
            partial(ours, **given),
            partial(ours.encode, ids),
            partial(ours.generate, ids, max_new_tokens=2),
            partial(ours.generate, ids, max_new_tokens=2, num_beams=2),
        ):
            with pytest.raises(RuntimeError, match=f"model/model.safetensors: {LOST}"):
                call()
    assert capfd.readouterr().err.count(LOST) == 1
    del ours, call
    assert other(**given).logits.isfinite().all()


@torch.no_grad()
def test_a_converted_model_no_longer_needs_its_file(tmp_path):
    theirs = make("v1.1")
    ids, _ = inputs(theirs, [9, 7])
    ours = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path), torch.bfloat16)
    want = ours(input_ids=ids, decoder_input_ids=ids).logits
    shorten(tmp_path / "model.safetensors", 0)
    assert torch.equal(ours(input_ids=ids, decoder_input_ids=ids).logits, want)


def test_parameters_that_torch_reads_are_told_on_stderr(tmp_path, capfd):
    ours = T5ForConditionalGeneration.from_pretrained(save(make("v1.1"), tmp_path))
    shorten(tmp_path / "model.safetensors")
    for parameter in ours.parameters():
        parameter.sum()
    assert capfd.readouterr().err.count(LOST) == 1


def test_a_checkpoint_that_is_shortened_after_it_was_opened(tmp_path):
    CheckpointSaver(tmp_path).save(1, {"model": {"weight": torch.arange(100_000)}})
    opened = open_checkpoint(tmp_path / "step-00000001")
    weight = opened.read("model", "weight")
    opened.check_files()
    for file in (tmp_path / "step-00000001").glob("*.safetensors"):
        shorten(file)
    assert weight[-1] == 0
    with pytest.raises(RuntimeError, match=LOST):
        opened.check_files()


@pytest.mark.parametrize("convert", [to_safetensors, to_distributed_checkpoint])
@pytest.mark.parametrize("elements", [100, 100_000])
def test_a_checkpoint_that_is_shortened_while_it_is_converted_gives_no_file(elements, convert, tmp_path, monkeypatch):
    CheckpointSaver(tmp_path).save(1, {"model": {"weight": torch.arange(elements)}})

    read = Checkpoint.read

    def read_and_shorten(self, *named):
        tensor = read(self, *named)
        for file in self.directory.glob("*.safetensors"):
            shorten(file, 0)
        return tensor

    monkeypatch.setattr(Checkpoint, "read", read_and_shorten)
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match=LOST):
        convert(tmp_path / "step-00000001", out)
    assert not out.is_file() and not (out / ".metadata").exists()


def test_training_data_that_is_shortened_is_one_line(tmp_path):
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 22))
    process = subprocess.Popen(
        [
            PROGRAM,
            "train",
            "--data",
            data,
            "--out",
            tmp_path / "out",
            "--layers",
            "1",
            "--dim",
            "32",
            "--heads",
            "2",
            "--context",
            "64",
            "--batch",
            "8",
            "--steps",
            "1000000",
            "--eval-windows",
            "8",
            "--log-every",
            "1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "out" / "train.jsonl"
    deadline = time.monotonic() + 300
    while not (log.exists() and log.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    shorten(data)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert said.splitlines()[-1] == f"plimsoll: {data}: {LOST} (shortened by another process?)"


def test_a_chat_whose_model_is_shortened_ends_with_one_line(tmp_path):
    folder = tiny_llama.write(tmp_path, end=None, specials=("<|im_start|>", "<|im_end|>"), template=TEMPLATES["chatml"])
    words = [str(PROGRAM), "generate", "--model", str(folder), "--chat", "--tokens", "2", "--temperature", "0", "--threads", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout
        process.stdin.write("hi\n")
        process.stdin.flush()
        assert process.stdout.readline()
        shorten(folder / "model.safetensors", 0)
        _, said = process.communicate("there\nagain\n", timeout=300)
    assert process.returncode == 1 and said.splitlines() == [said.strip()] and LOST in said, said
