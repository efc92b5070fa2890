"""Gradients that plimsoll.optim.AdamW releases in backward: one backward pass, and ranks that average."""

import copy
from typing import Any

import plimsoll.optim.averaged_gradients
import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.optim import AdamW
from plimsoll.shard import OSS, FullyShardedDataParallel, ShardedDataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def loss_of(model, seed):
    torch.manual_seed(seed)
    return model(torch.randn(4, 8)).square().mean()


def assert_same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_second_backward_inside_is_refused_before_its_step():
    once, twice = model_of(), model_of()
    for model, count in ((once, 1), (twice, 2)):
        optimizer = AdamW(model.parameters())
        losses = [loss_of(model, seed) for seed in range(count)]
        if count == 1:
            with optimizer.release_gradients():
                losses[0].backward()
        else:
            with pytest.raises(RuntimeError, match=r"expected one backward\(\) inside"), optimizer.release_gradients():
                losses[0].backward()
                loss_of(model, 1).backward()
    assert_same(once, twice)


def test_a_parameter_in_two_reentrant_checkpoints_is_refused():
    layer, x = nn.Linear(8, 8), torch.randn(2, 8, requires_grad=True)
    inner = checkpoint(layer, x, use_reentrant=True)
    loss = checkpoint(layer, inner, use_reentrant=True).sum()
    with pytest.raises(RuntimeError, match=r"expected one backward\(\)"), AdamW(layer.parameters()).release_gradients():
        loss.backward()


def test_gradients_of_an_earlier_backward_that_the_last_one_does_not_reach_take_their_step():
    released, kept = model_of(), model_of()
    for model in (released, kept):
        optimizer = AdamW(model.parameters())
        loss_of(model, 0).backward()
        if model is released:
            with optimizer.release_gradients():
                loss_of(model[0], 1).backward()
            assert all(parameter.grad is None for parameter in model.parameters())
        else:
            loss_of(model[0], 1).backward()
            optimizer.step()
    assert_same(released, kept)


def step_of_one_process(model, count):
    """The model after a step on the mean of the ranks' losses."""
    optimizer = torch.optim.AdamW(model.parameters())
    (sum(loss_of(model, rank) for rank in range(count)) / count).backward()
    optimizer.step()
    return model.state_dict()


@ranks.case(2)
def distributed_data_parallel_is_refused(group):
    model = model_of()
    optimizer = AdamW(model.parameters())
    wrapped = DistributedDataParallel(model, process_group=group)
    before = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="got parameters of a DistributedDataParallel"), optimizer.release_gradients():
        loss_of(wrapped, dist.get_rank(group)).backward()
    assert_same(model, before)
    plimsoll.optim.averaged_gradients._alive.clear()  # as where pickle made the wrapper
    with pytest.raises(RuntimeError, match="written again after its update"), optimizer.release_gradients():
        loss_of(wrapped, dist.get_rank(group)).backward()
    plimsoll.optim.averaged_gradients._alive.add(wrapped)
    other = nn.Linear(8, 1)
    with AdamW(other.parameters()).release_gradients():
        loss_of(other, 0).backward()
    assert other.weight.grad is None


@ranks.case(2)
def sharded_wrappers_step_on_the_averages(group):
    reference = step_of_one_process(model_of(), 2)
    model = model_of()
    optimizer = OSS(model.parameters(), AdamW, group=group, lr=1e-3)
    wrapped = ShardedDataParallel(model, optimizer, process_group=group)
    inner: Any = optimizer.optim
    with inner.release_gradients():
        loss_of(wrapped, dist.get_rank(group)).backward()
    optimizer.step()
    whole = FullyShardedDataParallel(model_of(), process_group=group)
    with AdamW(whole.parameters(), lr=1e-3).release_gradients():
        loss_of(whole, dist.get_rank(group)).backward()
    for name, value in reference.items():
        for state in (model.state_dict(), whole.state_dict()):
            # A first update is lr times the gradient's sign, but where rounding of gradients near zero shows.
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
