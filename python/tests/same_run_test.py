"""Options that the ranks of `plimsoll train` must have in common: every option, unless it is listed here as a rank's own."""

import re
import subprocess
from typing import Any

import launched_ranks
import pytest
from shard_command_test import PLAN, PROGRAM, SHAPE, TEXT, pytestmark  # noqa: F401

# Another value of each option than both ranks have otherwise.
OTHER = {
    "out": ["--out={folder}/other"],
    "steps": ["--steps=9"],
    "model": ["--model=small"],
    "layers": ["--layers=1"],
    "dim": ["--dim=64"],
    "heads": ["--heads=1"],
    "context": ["--context=16"],
    "batch": ["--batch=4"],
    "accumulate": ["--accumulate=2"],
    "lr": ["--lr=0.5"],
    "schedule": ["--schedule=linear"],
    "warmup": ["--warmup=3"],
    "weight-decay": ["--weight-decay=0.2"],
    "clip": ["--clip=2"],
    "high-precision-tail": ["--high-precision-tail=0.5"],
    "finish-in": ["--finish-in", "bf16", "0.5"],
    "loss-scale": ["--loss-scale=8"],
    "loss-scale-hysteresis": ["--loss-scale-hysteresis=2"],
    "optimizer-state": ["--optimizer-state=bf16"],
    "masters": ["--masters=split"],
    "seed": ["--seed=2"],
    "shard": ["--shard=zero1"],
    "compress": ["--compress=fp8"],
    "offload": ["--shard=fsdp", "--offload=disk"],
    "checkpoint-activations": ["--checkpoint-activations"],
    "deadline": ["--deadline=21"],
    "eval-every": ["--eval-every=1"],
    "eval-windows": ["--eval-windows=7"],
    "save-every": ["--save-every=3"],
    "keep": ["--keep=8"],
    "async-save": ["--async-save"],
    "log-scales": ["--log-scales=3"],
    "resume": ["--resume"],
    "recipe": ["--recipe=bf16"],
    "watch": ["--watch=guard"],
}
# Each rank may have its own; `data` may have other names for the same text.
OWN = {
    "data": [],  # below
    "config-of": [],  # a directory, by any name
    "audit": ["--audit={folder}/audit"],
    "threads": ["--threads=2"],
    "log-every": ["--log-every=1"],
    "json": ["--json={folder}/log"],
    "config": ["--config={folder}/config"],
    "profile": ["--profile={folder}/profile"],
}


def two_ranks(folder, common, on_rank_1, text_of_rank_1=TEXT):
    """(exit code, stderr) of both."""
    processes = []
    with launched_ranks.reserved_port() as port:
        for rank, (text, more) in enumerate([(TEXT, []), (text_of_rank_1, on_rank_1)]):
            environment = launched_ranks.rank_environment(rank, 2, port)
            command = [PROGRAM, "train", "--data", text, "--out", folder / "run", *SHAPE, *PLAN, "--shard=ddp", *common, *more]
            streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen([str(word) for word in command], env=environment, **streams))
        said = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, error) for process, error in zip(processes, said, strict=False)]


def filled(arguments, folder):
    return [argument.format(folder=folder) for argument in arguments]


def test_every_option_is_listed_here():
    said = subprocess.run([PROGRAM, "train", "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^  --([a-z0-9-]+)", said, re.MULTILINE))
    assert options == OTHER.keys() | OWN.keys()


@pytest.mark.parametrize("option", OTHER)
def test_a_rank_with_another_value_is_named_with_its_option_at_once_by_all(tmp_path, option):
    common = ["--shard=fsdp"] if option == "offload" else []
    for code, error in two_ranks(tmp_path, common, filled(OTHER[option], tmp_path)):
        assert code == 2 and error.count("\n") == 1, error
        assert re.search(rf"plimsoll: --{option}: expected \S+ on rank 1, as on rank 0, got \S+\n", error), error


def test_a_rank_with_another_text_is_named_by_all(tmp_path):
    text = TEXT.read_bytes()
    (tmp_path / "other").write_bytes(text[:-1] + bytes([text[-1] ^ 1]))
    for code, error in two_ranks(tmp_path, [], [], tmp_path / "other"):
        assert code == 2 and error.count("\n") == 1
        assert re.search("--data: expected text with the SHA-256 [0-9a-f]{64} on rank 1, as on rank 0, got", error), error
    assert not (tmp_path / "run").exists()


def test_a_rank_that_cannot_read_its_text_is_named_by_all(tmp_path):
    (tmp_path / "empty").touch()
    for code, error in two_ranks(tmp_path, [], [], tmp_path / "empty"):
        assert (code, error) == (1, "plimsoll: rank 1: data: expected text, got 0 bytes\n")


def test_what_is_a_ranks_own_may_differ_and_ranks_that_end_well_print_nothing_on_stderr(tmp_path):
    (tmp_path / "copy").write_bytes(TEXT.read_bytes())
    (tmp_path / "config").write_text("{}")
    own = [argument for arguments in OWN.values() for argument in filled(arguments, tmp_path)]
    assert two_ranks(tmp_path, [], own, tmp_path / "copy") == [(0, ""), (0, "")]
