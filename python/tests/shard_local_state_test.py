"""local_state_dict() of classes made from FullyShardedDataParallel, whose state_dict() is their own."""

import pytest
import ranks
import torch
from plimsoll.shard import FullyShardedDataParallel
from torch import nn


class Local(FullyShardedDataParallel):
    """A model of which each rank saves what it holds."""

    def state_dict(self, *args, **kwargs):
        return self.local_state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        return self.load_local_state_dict(state_dict, strict)


@ranks.case(2)
def a_subclass_may_save_and_load_its_local_state(group):
    torch.manual_seed(1)
    inner = Local(nn.Linear(5, 5), group)
    model = Local(nn.Sequential(inner, nn.Linear(5, 3)), group)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert len(state) == len(held) == 2 and sum(value.numel() for value in state.values()) == (30 + 18) / 2
    for value in held.values():
        value.zero_()
    model.load_state_dict(state)
    for value, saved in zip(model.state_dict().values(), state.values(), strict=True):
        assert torch.equal(value, saved) and value.any()
    assert FullyShardedDataParallel.state_dict(model)["1.weight"].shape == (3, 5)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
