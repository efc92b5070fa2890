"""FullyShardedDataParallel and its optimizer in sharded checkpoints: saved by some ranks, loaded by others."""

import shutil
from typing import Any

import plimsoll.pytorch as te
import pytest
import ranks
import shard_models as models
import torch
import torch.distributed as dist
from plimsoll.common.recipe import DelayedScaling
from plimsoll.optim import AdamW
from plimsoll.shard import CheckpointSaver, open_latest_checkpoint
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from torch import nn


def save(group, run, step, model, optimizer):
    sections = {"model": model.sharded_state_dict(), "optimizer": model.sharded_optim_state_dict(optimizer)}
    CheckpointSaver(run, group).save(step, sections, {"step": step})


def load(group, run, model, optimizer):
    latest = open_latest_checkpoint(run, group)
    model.load_sharded_state_dict(latest)
    model.load_sharded_optim_state_dict(optimizer, latest)
    return latest


def train(model, optimizer, steps, group, ordered):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for step in steps:
        optimizer.zero_grad()
        for first in range(0, ordered, size):
            models.backward(model, *models.part(models.batch(step), first + rank, ordered))
        optimizer.step()


@ranks.case(3)
def another_number_of_ranks_goes_on_with_the_same_bits(group):
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    for flatten in (True, False):
        run = ranks.shared_folder(group)
        options = {"flatten_parameters": flatten}
        model = models.wrapped(models.blocks_net(), group, ordered_passes=2, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, range(2), group, 6)
        optimizer.param_groups[0]["lr"] = 3e-3
        save(group, run, 2, model, optimizer)
        train(model, optimizer, range(2, 4), group, 6)

        resumed = models.wrapped(models.blocks_net(seed=1), alone, ordered_passes=6, **options)
        theirs = torch.optim.AdamW(resumed.parameters(), lr=1.0)
        assert load(alone, run, resumed, theirs).world_size == 3
        assert theirs.param_groups[0]["lr"] == 3e-3
        train(resumed, theirs, range(2, 4), alone, 6)
        expected = model.state_dict()
        for name, value in resumed.state_dict().items():
            assert torch.equal(value, expected[name]), (flatten, name)
        dist.barrier(group)
        if dist.get_rank(group) == 0:
            shutil.rmtree(run)


@ranks.case(2)
def scaling_states_and_running_statistics_come_back(group):
    def make(seed):
        torch.manual_seed(seed)
        return Fsdp(nn.Sequential(te.Linear(16, 16), nn.BatchNorm1d(16)), group)

    run = ranks.shared_folder(group)
    model = make(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        with te.fp8_autocast(fp8_recipe=DelayedScaling(amax_history_len=4), fp8_group=group):
            loss = model(torch.ones(16, 16).cumsum(0)).square().sum()
        loss.backward()
        optimizer.step()
    save(group, run, 1, model, optimizer)
    again = make(1)
    theirs = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    load(group, run, again, theirs)
    expected = model.state_dict()
    assert expected["0.weight_amax_history"].shape == (4,) and expected["1.running_mean"].abs().max() > 0
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())
    for ours, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(optimizer.state[ours]["momentum_buffer"], theirs.state[other]["momentum_buffer"])


@ranks.case(2)
def a_parameter_without_a_state_has_none_again(group):
    run = ranks.shared_folder(group)
    model = models.wrapped(models.blocks_net(), group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    save(group, run, 0, model, optimizer)
    train(model, optimizer, range(2), group, 2)
    assert optimizer.state
    load(group, run, model, optimizer)
    assert not optimizer.state
    resumed = models.wrapped(models.blocks_net(), group)
    for each, its in ((model, optimizer), (resumed, torch.optim.AdamW(resumed.parameters(), lr=1e-2))):
        train(each, its, range(2), group, 2)
    expected = resumed.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


@ranks.case(2)
def buffers_are_saved_in_their_precision(group):
    dtypes = {"wide": torch.float64, "plain": torch.float32, "coded": torch.float8_e4m3fn, "count": torch.int64}
    values = {name: torch.full((2,), 1 / 3, dtype=torch.float64).to(dtype) for name, dtype in dtypes.items()}
    values["narrow"] = torch.full((2,), 1 / 3, dtype=torch.bfloat16)

    def make():
        module = nn.Linear(3, 2)
        for name, value in values.items():
            module.register_buffer(name, value.clone())
        return Fsdp(module, group)

    run = ranks.shared_folder(group)
    model = make()
    saved = model.sharded_state_dict()
    assert {name: saved[name].dtype for name in values} == {**dtypes, "narrow": torch.float32}
    CheckpointSaver(run, group).save(1, {"model": saved})
    again = make()
    for buffer in again.buffers():
        buffer.zero_()
    latest: Any = open_latest_checkpoint(run, group)
    again.load_sharded_state_dict(latest)
    for name, buffer in again.named_buffers():
        assert buffer.dtype == values[name].dtype and torch.equal(buffer.double(), values[name].double()), name


@ranks.case(2)
def what_does_not_fit_is_named_and_changes_nothing(group):
    run = ranks.shared_folder(group)
    model: Any = Fsdp(nn.Linear(3, 2), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save(group, run, 1, model, optimizer)
    latest: Any = open_latest_checkpoint(run, group)
    other: Any = Fsdp(nn.Linear(4, 2), group)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(ValueError, match=r"expected weight of \(2, 4\), got \(2, 3\)"):
        other.load_sharded_state_dict(latest)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=False))
    with pytest.raises(KeyError, match="0.weight"):
        Fsdp(nn.Sequential(nn.Linear(3, 2)), group).load_sharded_state_dict(latest)
    with pytest.raises(KeyError, match="'other'"):
        model.load_sharded_state_dict(latest, "other")
    groups = [{"params": [p]} for p in model.parameters()] + [{"params": [nn.Parameter(torch.ones(1))]}]
    with pytest.raises(ValueError, match="expected 2 param_groups, got 1"):
        model.load_sharded_optim_state_dict(torch.optim.SGD(groups, lr=0.1), latest)


@ranks.case(2)
def states_become_those_of_the_optimizer_that_loads_them(group):
    run = ranks.shared_folder(group)
    model = models.wrapped(models.blocks_net(), group)
    optimizer = AdamW(model.parameters(), lr=1e-2, seed=3)
    train(model, optimizer, range(2), group, 2)
    save(group, run, 2, model, optimizer)
    again = models.wrapped(models.blocks_net(seed=1), group)
    narrow = AdamW(again.parameters(), lr=1.0, optimizer_state="bf16", seed=5)
    load(group, run, again, narrow)
    assert [group["optimizer_state"] for group in narrow.param_groups] == ["bf16"] * len(narrow.param_groups)
    assert narrow.param_groups[0]["lr"] == 1e-2
    assert len(narrow.state) == len(optimizer.state) > 0
    for ours, other in zip(model.parameters(), again.parameters(), strict=True):
        if ours not in optimizer.state:
            continue
        state, theirs = optimizer.state[ours], narrow.state[other]
        assert theirs["step"] == 2 and torch.equal(theirs["exp_avg"], state["exp_avg"].bfloat16())
    train(again, narrow, range(2, 3), group, 2)
    wide = models.wrapped(models.blocks_net(seed=1), group)
    torchs = torch.optim.AdamW(wide.parameters(), lr=1.0)
    load(group, run, wide, torchs)
    for ours, other in zip(model.parameters(), wide.parameters(), strict=True):
        if ours in optimizer.state:
            assert torch.equal(torchs.state[other]["exp_avg"], optimizer.state[ours]["exp_avg"])


@ranks.case(2)
def states_of_other_parameters_are_named_and_change_nothing(group):
    def made(*layers):
        model: Any = Fsdp(nn.Sequential(*layers), group)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        return model, optimizer

    run = ranks.shared_folder(group)
    model, optimizer = made(nn.Linear(3, 4), nn.Linear(4, 2))
    save(group, run, 1, model, optimizer)
    latest: Any = open_latest_checkpoint(run, group)
    for layers, message in (
        ((nn.Linear(3, 2), nn.Linear(2, 2)), r"expected 0.weight.exp_avg of \(2, 3\), got \(4, 3\)"),
        ((nn.Linear(3, 4),), r"expected states of the module's parameters, got those of 1.bias, 1.weight"),
    ):
        other, its = made(*layers)
        before = {id(leaf): {key: value.clone() for key, value in state.items()} for leaf, state in its.state.items()}
        with pytest.raises(ValueError, match=message):
            other.load_sharded_optim_state_dict(its, latest)
        for leaf, state in its.state.items():
            assert all(torch.equal(value, before[id(leaf)][key]) for key, value in state.items())


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
