"""States of optimizers over the shards of FullyShardedDataParallel, gathered and given back: whichever parameters they have."""

import copy
import itertools
from typing import Any

import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from rounding import rounds_alike
from torch import nn


def frozen_in_the_middle():
    """Frozen parameters come before trained ones of the same shapes, so that a wrong number finds a place."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(9, 17), nn.Linear(17, 17), nn.Linear(17, 17), nn.Linear(17, 17), nn.Linear(17, 1))
    net[1].requires_grad_(False)
    return net


def all_parameters(model):
    return list(model.parameters())


def trained_parameters(model):
    return [p for p in model.parameters() if p.requires_grad]


def in_groups(model):
    """As decay is often chosen: not in the module's order."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0},
        {"params": [p for name, p in named if name.endswith("weight")]},
    ]


def named_parameters(model):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def wrapped(group, flatten, inner):
    net = frozen_in_the_middle()
    if inner:
        for index in (1, 2):
            net[index] = Fsdp(net[index], group, flatten_parameters=flatten)
    return Fsdp(net, group, flatten_parameters=flatten)


def trained(model, optimizer, x, y):
    for _ in range(2):
        optimizer.zero_grad()
        models.backward(model, x, y)
        optimizer.step()


CHOICES = (all_parameters, trained_parameters, named_parameters, in_groups)


def options(group):
    for choice, flatten, inner in itertools.product(CHOICES, (True, False), (True, False)):
        if not (choice is in_groups and flatten):  # a flat shard has no name of its own for a bias
            yield choice, wrapped(group, flatten, inner)


@ranks.case(2)
def a_round_trip_changes_nothing(group):
    rank, size = models.position(group)
    for choice, model in options(group):
        optimizer = torch.optim.AdamW(choice(model), lr=1e-2)
        trained(model, optimizer, *models.part(models.batch(0), rank, size))
        full = model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
        mine = model.get_shard_from_optim_state_dict(copy.deepcopy(full))
        again = torch.optim.AdamW(choice(model), lr=0.5)
        again.load_state_dict(mine)
        assert again.param_groups[0]["lr"] == 1e-2
        assert optimizer.state.keys() == again.state.keys()
        for leaf, state in optimizer.state.items():
            assert state.keys() == again.state[leaf].keys()
            assert all(torch.equal(value, again.state[leaf][key]) for key, value in state.items()), choice.__name__


@ranks.case(2)
def a_gathered_state_is_that_of_torchs_optimizer(group):
    """The same numbers for the same parameters, whatever the groups are."""
    rank, size = models.position(group)
    x, y = models.batch(0)
    for choice, model in options(group):
        optimizer = torch.optim.AdamW(choice(model), lr=1e-2)
        trained(model, optimizer, *models.part((x, y), rank, size))
        full = model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
        states = []
        for dtype in (torch.float32, torch.float64):
            plain = frozen_in_the_middle().to(dtype)
            reference = torch.optim.AdamW(choice(plain), lr=1e-2)
            trained(plain, reference, x.to(dtype), y.to(dtype))
            states.append(reference.state_dict())
        expected, exact = states
        assert full["state"].keys() == expected["state"].keys()
        assert all(full["state"][index].keys() == state.keys() for index, state in expected["state"].items())
        for key in ("step", "exp_avg", "exp_avg_sq"):
            values = [
                torch.cat([each["state"][index][key].flatten() for index in expected["state"]])
                for each in (full, expected, exact)
            ]
            assert rounds_alike(*values), key
        assert full["param_groups"] == expected["param_groups"], choice.__name__


@ranks.case(2)
def the_state_of_torchs_optimizer_is_sharded(group):
    rank, size = models.position(group)
    x, y = models.batch(0)
    for choice, model in options(group):
        plain = frozen_in_the_middle()
        reference = torch.optim.AdamW(choice(plain), lr=1e-2)
        trained(plain, reference, x, y)
        state = reference.state_dict()
        if choice is in_groups:  # which of them has which parameters is not in it
            with pytest.raises(ValueError, match="one param_group, or param_names, got 2"):
                model.get_shard_from_optim_state_dict(state)
            continue
        optimizer = torch.optim.AdamW(choice(model), lr=0.5)
        optimizer.load_state_dict(model.get_shard_from_optim_state_dict(state))
        full = model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
        for index, entries in state["state"].items():
            assert all(torch.equal(full["state"][index][key], value) for key, value in entries.items()), choice.__name__


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.layer, self.rest = nn.Linear(9, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.rest(self.layer(x) * self.scale)


@ranks.case(3)
def a_parameter_without_dimensions_has_a_state_too(group):
    rank, size = models.position(group)
    for flatten, few in itertools.product((True, False), repeat=2):
        net = Scaled()
        if few:  # there is nothing with dimensions to compare with
            net.layer.requires_grad_(False), net.rest.requires_grad_(False)
        model: Any = Fsdp(net, group, flatten_parameters=flatten)
        optimizer = torch.optim.AdamW(trained_parameters(model), lr=1e-2)
        trained(model, optimizer, *models.part(models.batch(0), rank, size))
        full: Any = model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
        assert full["state"][0]["exp_avg"].shape == () and full["state"][0]["step"] == 2
        again = torch.optim.AdamW(trained_parameters(model), lr=1e-2)
        again.load_state_dict(model.get_shard_from_optim_state_dict(full))
        for leaf, state in optimizer.state.items():
            assert all(torch.equal(value, again.state[leaf][key]) for key, value in state.items())


@ranks.case(2)
def a_state_of_other_parameters_is_an_error(group):
    model = wrapped(group, False, True)
    plain = frozen_in_the_middle()
    few = torch.optim.AdamW(list(plain.parameters())[:3])
    with pytest.raises(ValueError, match="expected 10 or, of trained ones, 8 parameters, got 3"):
        model.get_shard_from_optim_state_dict(few.state_dict())
    other = nn.Sequential(nn.Linear(9, 17), nn.Linear(17, 16), nn.Linear(16, 17), nn.Linear(17, 17), nn.Linear(17, 1))
    wide = torch.optim.AdamW(other.parameters())
    models.backward(other, *models.batch(0))
    wide.step()
    with pytest.raises(ValueError, match=r"expected exp_avg of 1.weight to be \[17, 17\], got \[16, 17\]"):
        model.get_shard_from_optim_state_dict(wide.state_dict())
    flat = wrapped(group, True, False)
    groups = [{"params": [item for item in plain.named_parameters() if item[0].endswith(end)]} for end in ("weight", "bias")]
    with pytest.raises(ValueError, match="expected all parameters of _fsdp_wrapped_module.flat_param_0 in one"):
        flat.get_shard_from_optim_state_dict(torch.optim.AdamW(groups).state_dict())
    named = torch.optim.AdamW(other.named_parameters()).state_dict()
    named["param_groups"][0]["param_names"][0] = "nobody.weight"
    with pytest.raises(ValueError, match="nobody.weight"):
        model.get_shard_from_optim_state_dict(named)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
