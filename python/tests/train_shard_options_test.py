"""Options of `plimsoll train --shard` beside sharing: compress, offload, checkpoint activations, and show its collectives."""

import json
import re

import pytest
import torch
from rounding import gamma
from shard_command_test import losses, pytestmark, started, train, weights  # noqa: F401


def summary(out):
    return json.loads((out / "train.jsonl").read_text().splitlines()[-1])


def same(one, other):
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two ranks without any of it: {way of sharing: directory}."""
    folder = tmp_path_factory.mktemp("plain")
    ways = ("ddp", "zero2", "fsdp")
    for shard in ways:
        train(2, folder / shard, f"--shard={shard}", "--recipe=fp8")
    return {shard: folder / shard for shard in ways}


@pytest.mark.parametrize(
    ("shard", "option"),
    [("fsdp", "--offload=disk"), ("fsdp", "--checkpoint-activations"), ("ddp", "--checkpoint-activations")],
)
def test_bits_are_those_of_a_run_without(tmp_path, plain, shard, option):
    train(2, tmp_path / "run", f"--shard={shard}", "--recipe=fp8", option)
    assert losses(tmp_path / "run") == losses(plain[shard])
    assert same(weights(tmp_path / "run", 8), weights(plain[shard], 8))
    saved = [summary(out)["saved_activation_bytes"] for out in (tmp_path / "run", plain[shard])]
    logits = 6 * 32 * 256 * 4  # of a rank's tokens, in fp32
    assert saved[0] - logits < 0.6 * (saved[1] - logits) if "activations" in option else saved[0] == saved[1]


@pytest.mark.parametrize(
    ("shard", "compress", "share"), [("ddp", "bf16", 0.5), ("ddp", "fp8", (1 + 4 / 128) / 4), ("zero2", "fp8", (1 + 4 / 128) / 4)]
)
def test_compressed_gradients_take_fewer_bytes_and_train_alike(tmp_path, plain, shard, compress, share):
    train(2, tmp_path / "run", f"--shard={shard}", "--recipe=fp8", f"--compress={compress}")
    # A gradient is off by one rounding, and so is what its step takes off the loss.
    theirs = losses(plain[shard])
    rounding = gamma(1, {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[compress])
    assert losses(tmp_path / "run") == pytest.approx(theirs, rel=0, abs=rounding * (theirs[0] - theirs[-1]))
    sent = [summary(out)["sent_bytes"] for out in (tmp_path / "run", plain[shard])]
    # Under zero2 owners send parameters, which nobody compresses, in about as many bytes.
    most = share if shard == "ddp" else (1 + share) / 2
    # Beside gradients: a loss, amaxes, heartbeats.
    assert share < sent[0] / sent[1] < most + 0.1


def test_the_profile_shows_collectives_and_what_of_them_was_waited_for(tmp_path):
    said = train(2, tmp_path / "run", "--shard=fsdp", f"--profile={tmp_path / 'trace.json'}")
    found = re.search(r"collectives of rank 0: under way for ([\d.]+) ms of a step; training waited ([\d.]+) ms", said)
    assert found and float(found[1]) > 0
    rows = [line.split() for line in said[found.start() :].splitlines()[2:]]
    assert {row[0] for row in rows} >= {"all_gather", "all_to_all", "all_reduce"}
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lines = {event["tid"] for event in events if event.get("cat") == "collectives"}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert lines and 1 not in lines and names == dict.fromkeys(lines, "collectives")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--shard=ddp", "--offload=disk"], "--offload disk: expected --shard fsdp, got ddp"),
        (["--shard=fsdp", "--compress=fp8"], "--compress fp8: expected --shard ddp, zero1 or zero2, got fsdp"),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path, arguments, text):
    process = started(1, "--out", tmp_path / "run", *arguments)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode != 0
    assert text in errors


def test_offload_to_the_cpu_says_that_all_is_there(tmp_path):
    process = started(1, "--out", tmp_path / "run", "--shard=fsdp", "--offload=cpu")
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0
    assert "--offload cpu: everything is in the memory of the CPU" in errors
