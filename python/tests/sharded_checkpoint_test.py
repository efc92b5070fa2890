"""Checkpoints from Python: saved by several ranks, read at any number, as those of others and back."""

import json
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from plimsoll.shard import (
    CheckpointSaver,
    Piece,
    from_distributed_checkpoint,
    from_safetensors,
    open_checkpoint,
    open_latest_checkpoint,
    to_distributed_checkpoint,
    to_safetensors,
)
from safetensors.torch import load_file, save_file


def part_of(step, rank, size, elements=1001):
    each = -(-elements // size)
    begin, end = min(elements, rank * each), min(elements, (rank + 1) * each)
    return Piece(torch.arange(begin + step, end + step), (7, 143), begin)


def whole_of(step):
    return torch.arange(step, step + 1001).view(7, 143)


@ranks.case(3)
def what_three_ranks_save_two_and_one_read(group):
    run, rank = ranks.shared_folder(group), dist.get_rank(group)
    assert open_latest_checkpoint(run, group) is None
    saver = CheckpointSaver(run, group, keep=2)
    for step in (1, 2, 3):
        sections = {"model": {"weight": part_of(step, rank, 3), "bias": torch.full((4,), float(step))}}
        saver.save(step, sections, {"seed": step})
    latest: Any = open_latest_checkpoint(run, group)
    assert (latest.step, latest.world_size, latest.state, latest.refused) == (3, 3, {"seed": 3}, [])
    assert latest.shapes == {"model": {"weight": (7, 143), "bias": (4,)}}
    assert torch.equal(latest.read("model", "weight"), whole_of(3))
    pair = dist.new_group([0, 1])
    if rank < 2:
        again: Any = open_latest_checkpoint(run, pair)
        begin, end = rank * 300, rank * 300 + 501
        assert torch.equal(again.read("model", "weight", begin, end), whole_of(3).flatten()[begin:end])
    alone = open_checkpoint(run / "step-00000002").section("model")
    assert torch.equal(alone["weight"], whole_of(2)) and torch.equal(alone["bias"], torch.full((4,), 2.0))
    assert sorted(path.name for path in run.glob("step-*")) == ["step-00000002", "step-00000003"]


@ranks.case(2)
def a_damaged_shard_is_named_and_the_step_before_used(group):
    run, rank = ranks.shared_folder(group), dist.get_rank(group)
    saver = CheckpointSaver(run, group)
    for step in (1, 2):
        saver.save(step, {"model": {"weight": part_of(step, rank, 2)}})
    shard = run / "step-00000002" / "model.rank-00001.safetensors"
    if rank == 0:
        shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    dist.barrier(group)
    latest: Any = open_latest_checkpoint(run, group)
    assert latest.step == 1 and shard.name in latest.refused[0]
    with pytest.raises(RuntimeError, match=shard.name):
        open_checkpoint(run / "step-00000002")


@ranks.case(2)
def training_goes_on_while_a_copy_is_written(group):
    run, rank = ranks.shared_folder(group), dist.get_rank(group)
    saver = CheckpointSaver(run, group, asynchronous=True)
    for step in (1, 2):
        piece = part_of(step, rank, 2)
        saver.save(step, {"model": {"weight": piece}})
        piece.values.fill_(-1)
        dist.all_reduce(torch.ones(1), group=group)
    saver.wait()
    latest = open_latest_checkpoint(run, group)
    assert latest is not None and torch.equal(latest.read("model", "weight"), whole_of(2))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_below_those_that_are_there_stays(asynchronous, tmp_path):
    for steps, keep in (((800, 900, 1000), 3), ((200, 300), 1)):
        saver = CheckpointSaver(tmp_path, keep=keep, asynchronous=asynchronous)
        for step in steps:
            saver.save(step, {"model": {"bias": torch.zeros(3)}})
        saver.wait()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{n:08}" for n in (300, 800, 900, 1000)]


@pytest.mark.parametrize("keep", [0, -1])
def test_one_checkpoint_or_more_is_kept(keep, tmp_path):
    with pytest.raises(ValueError, match=f"checkpoint: expected to keep 1 or more, got {keep}"):
        CheckpointSaver(tmp_path, keep=keep)


@ranks.case(2)
def what_json_does_not_take_is_named(group):
    run, rank = ranks.shared_folder(group), dist.get_rank(group)
    sections = {"model": {"bias": torch.zeros(3)}}
    refused = {"loss": float("nan"), "best": [1, float("-inf")], "text": "\ud800", "set": {1}}
    for asynchronous in (False, True):
        saver = CheckpointSaver(run, group, asynchronous=asynchronous)
        saver.save(1, sections, {"text": "\u00e9\0", "rank": rank} if rank == 0 else refused)
        for name, value in refused.items():
            kind = TypeError if name == "set" else ValueError
            with pytest.raises(kind, match=f"CheckpointSaver.save: expected a state as JSON takes it, got of '{name}': "):
                saver.save(2, sections, {"step": 2, name: value} if rank == 0 else None)
        saver.wait()
    latest: Any = open_latest_checkpoint(run, group)
    assert (latest.step, latest.state) == (1, {"text": "\u00e9\0", "rank": 0})


def test_a_step_below_0_is_an_error(tmp_path):
    for asynchronous in (False, True):
        saver = CheckpointSaver(tmp_path / "run", asynchronous=asynchronous)
        with pytest.raises(ValueError, match="checkpoint: expected a step of 0 or more, got -1"):
            saver.save(-1, {"model": {"bias": torch.zeros(3)}})
    assert not any((tmp_path / "run").glob("step*"))


def test_a_run_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="file"):
        CheckpointSaver(tmp_path / "file").save(1, {"model": {"weight": torch.ones(1)}})
    saver = CheckpointSaver(tmp_path / "file", asynchronous=True)
    saver.save(1, {"model": {"weight": torch.ones(1)}})
    with pytest.raises(RuntimeError, match="file"):
        saver.wait()


def tensors():
    torch.manual_seed(1)
    return {
        "model.weight": torch.randn(5, 3),
        "model.codes": torch.randn(9).to(torch.float8_e4m3fn),
        "optimizer.weight.exp_avg": torch.randn(5, 3).bfloat16(),
        "optimizer.weight.step": torch.tensor([7]),
    }


def same(a, b):
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)
    )


def test_distributed_checkpoints_become_ours_and_ours_theirs(tmp_path):
    dcp.save({**tensors(), "state": {"seed": 3}, "step": 12}, checkpoint_id=str(tmp_path / "theirs"), no_dist=True)
    directory = from_distributed_checkpoint(tmp_path / "theirs", tmp_path / "run")
    ours = open_checkpoint(directory)
    assert (directory.name, ours.step, ours.state) == ("step-00000012", 12, {"seed": 3})
    for name, tensor in tensors().items():
        assert same(ours.read(*name.split(".", 1)), tensor), name
    to_distributed_checkpoint(directory, tmp_path / "again")
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()} | {"state": {"seed": 0, "step": 0}}
    dcp.load(loaded, checkpoint_id=str(tmp_path / "again"), no_dist=True)
    assert all(same(loaded[name], tensor) for name, tensor in tensors().items())
    assert loaded["state"] == {"seed": 3, "step": 12}


def test_a_directory_that_does_not_say_its_step_needs_one(tmp_path):
    dcp.save({"weight": torch.ones(2)}, checkpoint_id=str(tmp_path / "theirs"), no_dist=True)
    with pytest.raises(ValueError, match="expected `step`"):
        from_distributed_checkpoint(tmp_path / "theirs", tmp_path / "run")
    ours = open_checkpoint(from_distributed_checkpoint(tmp_path / "theirs", tmp_path / "run", step=4))
    assert torch.equal(ours.read("model", "weight"), torch.ones(2))


def test_hugging_faces_files_become_ours_and_ours_theirs(tmp_path):
    model = {name: tensor for name, tensor in tensors().items() if name.startswith("model.")}
    (whole := tmp_path / "whole").mkdir()
    save_file(model, whole / "model.safetensors")
    (parts := tmp_path / "parts").mkdir()
    for name, tensor in model.items():
        save_file({name: tensor}, parts / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in model}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    for step, source in enumerate((whole, parts, whole / "model.safetensors")):
        ours = from_safetensors(source, tmp_path / "run", step)
        to_safetensors(ours, tmp_path / "again.safetensors")
        again = load_file(tmp_path / "again.safetensors")
        assert again.keys() == model.keys() and all(same(again[name], model[name]) for name in model), source
    index["weight_map"]["lost"] = "model.codes.safetensors"
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"model.codes.safetensors: expected \['lost'\]"):
        from_safetensors(parts, tmp_path / "run", 7)
    with pytest.raises(FileNotFoundError, match="expected model.safetensors or"):
        from_safetensors(tmp_path, tmp_path / "run", 7)


def indexed(folder, index):
    folder.mkdir()
    save_file({"weight": torch.ones(2)}, folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "{folder}/outside.safetensors", "in/it.safetensors", "", ".", "..", "a\0b", 3]
)
def test_an_index_names_files_beside_it(file, tmp_path):
    name = file.format(folder=tmp_path) if isinstance(file, str) else file
    source = indexed(tmp_path / "model", {"weight_map": {"weight": name}})
    with pytest.raises(ValueError, match="tensor 'weight': expected a file beside the index, got"):
        from_safetensors(source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("index", [[], {}, {"weight_map": ["weight"]}])
def test_an_index_is_an_object_with_a_weight_map(index, tmp_path):
    with pytest.raises(ValueError, match="expected an object with a weight_map"):
        from_safetensors(indexed(tmp_path / "model", index), tmp_path / "run")


def test_a_shard_may_be_a_link_to_elsewhere(tmp_path):
    source = indexed(tmp_path / "model", {"weight_map": {"weight": "one.safetensors"}})
    (source / "one.safetensors").symlink_to(tmp_path / "outside.safetensors")  # as in Hugging Face's cache
    ours = open_checkpoint(from_safetensors(source, tmp_path / "run"))
    assert torch.equal(ours.read("model", "weight"), torch.ones(2))


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
