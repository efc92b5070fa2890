"""plimsoll.shard.FullyShardedDataParallel of modules and instances that share a weight."""

import copy
import gc
import pickle
from typing import Any, cast

import plimsoll.pytorch as te
import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from torch import nn


@ranks.case(2)
def a_shared_weight_counts_once(group):
    rank, size = models.position(group)
    for flatten in (True, False):
        model = Fsdp(models.Net(), group, flatten_parameters=flatten)
        plain = models.Net()
        assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in plain.parameters())
        x, y = models.batch(0)
        models.backward(model, *models.part((x, y), rank, size))
        magnitudes = models.magnitudes(plain, x, y)
        models.backward(plain, x, y)
        found = models.full_gradients(model)
        for name, gradient in models.gradients(plain).items():
            assert ((found[name] - gradient).abs() <= models.rounding_bound(magnitudes[name])).all()
        assert torch.equal(model.state_dict()["tied.weight"], model.state_dict()["blocks.1.0.weight"])


class Tied(nn.Module):
    """A table of tokens, which is read again at the end, with blocks in between."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def tied_backward(model, step, rank, size):
    tokens = torch.randint(11, (12, 5), generator=torch.Generator().manual_seed(step))
    mine = tokens[rank * 12 // size : (rank + 1) * 12 // size]
    nn.functional.cross_entropy(model(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten()).backward()


# Modules with an instance of their own: the table and what reads it again, or one of them, and the other one has the outermost.
TIED = [("embedding", "blocks", "head"), ("embedding", "blocks"), ("blocks", "head")]


@ranks.case(3)
def instances_share_a_weight(group):
    rank, size = models.position(group)
    for names in TIED:
        choices: list[dict[str, Any]] = [{}, {"flatten_parameters": False}, {"reshard_after_forward": False}, {"prefetch": False}]
        for options in choices:
            plain, model = Tied(), cast(Any, Tied())
            for name in names:
                setattr(model, name, Fsdp(getattr(model, name), group, **options))
            model = Fsdp(model, group, **options)
            if names == TIED[0]:
                model.head.append_shared_param(model.embedding.module.weight)
            assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in plain.parameters())
            ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, plain))
            for step in range(3):
                tied_backward(model, step, rank, size)
                tied_backward(plain, step, 0, 1)
                found = models.full_gradients(model)
                for name, gradient in models.gradients(plain).items():
                    torch.testing.assert_close(found[name], gradient)
                for optimizer in (ours, theirs):
                    optimizer.step()
                    optimizer.zero_grad()
            state = model.state_dict()
            assert state.keys() == plain.state_dict().keys() and torch.equal(state["head.weight"], state["embedding.weight"])
            torch.testing.assert_close(state, plain.state_dict())
            parts = [ranks.gathered(group, part()) for part in (model.local_state_dict, model.local_metadata_dict)]
            whole = Fsdp.consolidate_shard_weights(*parts)
            assert all(torch.equal(whole[name], value) for name, value in state.items())
            again = copy.deepcopy(model)
            model.load_state_dict(plain.state_dict())
            for one in (model, again):
                tied_backward(one, 3, rank, size)
            assert model.state_dict()["head.weight"].equal(plain.head.weight)


@ranks.case(1)
def what_cannot_be_shared_is_an_error(group):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    held, borrows = Fsdp(first, group), Fsdp(second, group)
    with pytest.raises(RuntimeError, match="inside the one that is called"):
        borrows(torch.ones(1, 3))
    with pytest.raises(ValueError, match="when it was wrapped"):
        held.append_shared_param(cast(Any, second.weight))
    with pytest.raises(pickle.PicklingError, match="of another instance"):
        pickle.dumps(borrows)
    both = nn.Sequential(held, borrows)
    Fsdp(both, group)(torch.ones(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="before the first forward pass"):
        borrows.append_shared_param(cast(Any, first.weight))
    layers = te.Linear(16, 16), te.Linear(16, 16)
    layers[1].weight = layers[0].weight
    coded: Any = Fsdp(layers[0], group)
    with pytest.raises(ValueError, match="gather_codes=False in the instance that holds weight"):
        Fsdp(layers[1], group)
    third: Any = nn.Linear(3, 3)
    third.weight = coded.module.weight
    del coded
    del layers
    gc.collect()
    with pytest.raises(ValueError, match="which is gone"):
        Fsdp(third, group)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
