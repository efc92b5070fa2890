"""States of plimsoll.shard.FullyShardedDataParallel and of its optimizers: those of the module inside."""

import copy
import pickle

import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from torch import nn


@ranks.case(2)
def full_parameters_can_be_read_and_written(group):
    rank, _ = models.position(group)
    plain = models.blocks_net()
    model = models.wrapped(models.blocks_net(), group, mixed_precision=True, compute_dtype=torch.bfloat16)
    with model.summon_full_params():
        shown = dict(model.named_parameters())
        assert shown.keys() == dict(plain.named_parameters()).keys()
        for name, parameter in plain.named_parameters():
            assert torch.equal(shown[name], parameter), "exact"
        model.module.first.weight.data.fill_(3)
        model.module.last.weight = nn.Parameter(torch.full((1, 17), 4.0))
    assert [name for name, _ in model.named_parameters()][0] == "_fsdp_wrapped_module.flat_param_0"
    with model.summon_full_params(volatile=True):
        assert (model.module.first.weight == 3).all() and (model.module.last.weight == 4).all()
        model.module.first.weight.data.fill_(5)
    weights = models.full_weights(model)
    assert (weights["first.weight"] == 3).all() and torch.equal(weights["blocks.0.0.bias"], plain.blocks[0][0].bias)
    with torch.no_grad():
        assert not torch.equal(model(models.batch(0)[0]).float(), plain(models.batch(0)[0]))


@ranks.case(2)
def a_state_dict_is_that_of_the_module(group):
    rank, _ = models.position(group)
    for flatten in (True, False):
        plain = models.blocks_net(seed=1)
        model = models.wrapped(models.blocks_net(seed=0), group, flatten_parameters=flatten)
        model.load_state_dict(plain.state_dict())
        state = model.state_dict()
        assert list(state) == list(plain.state_dict())
        assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
        local = model.local_state_dict()
        other = models.wrapped(models.blocks_net(seed=2), group, flatten_parameters=flatten)
        other.load_local_state_dict(local)
        assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())
        everyone = ranks.gathered(group, (local, model.local_metadata_dict()))
        whole = Fsdp.consolidate_shard_weights([w for w, _ in everyone], [m for _, m in everyone])
        assert whole.keys() == state.keys() and all(torch.equal(whole[name], state[name]) for name in state)
    first = Fsdp(nn.Linear(3, 3), group, state_dict_on_rank_0_only=True)
    assert bool(first.state_dict()) == (rank == 0)


@ranks.case(3)
def an_optimizers_state_is_that_of_the_module(group):
    """A step of the whole module's optimizer, from gathered state, is the step of the shards'; and back."""
    rank, size = models.position(group)
    for flatten in (True, False):
        model = models.wrapped(models.blocks_net(), group, flatten_parameters=flatten)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        models.backward(model, *models.part(models.batch(0), rank, size))
        optimizer.step()
        full = model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
        assert (model.gather_full_optim_state_dict(optimizer) is None) == (rank > 0)
        plain = models.blocks_net()
        plain.load_state_dict(model.state_dict())
        reference = torch.optim.AdamW(plain.parameters(), lr=0.5)
        reference.load_state_dict(copy.deepcopy(full))  # torch keeps what it is given
        again = torch.optim.AdamW(model.parameters(), lr=0.5)
        again.load_state_dict(model.get_shard_from_optim_state_dict(full))
        found = models.full_gradients(model)
        for name, parameter in plain.named_parameters():
            if parameter.requires_grad:
                parameter.grad = found[name]
        reference.step()
        again.step()
        after = model.state_dict()
        different = [name for name, value in plain.state_dict().items() if not torch.equal(after[name], value)]
        assert not different, (flatten, different)


@ranks.case(ranks.WORLD)  # what is loaded has the group of all ranks
def copies_and_pickles_train_on(group):
    model = models.wrapped(models.blocks_net(), group)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=False))
        models.backward(again, *models.part(models.batch(0), *models.position(group)))
        assert again.flat_param_0.grad is not None and model.flat_param_0.grad is None


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
