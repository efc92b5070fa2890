"""Models, batches and one-process results that the tests of plimsoll.shard compare with."""

from typing import Any

import ranks
import torch
import torch.distributed as dist
from plimsoll.shard import FullyShardedDataParallel
from plimsoll.shard.sharded_parameters import clean
from torch import nn

ROWS = 24  # of the whole batch, which 1, 2, 3, 4, 8 ranks share


class Net(nn.Module):
    """Odd sizes, so that shards are uneven; a weight used twice, one that does not train, one that nobody uses."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(9, 17)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(17, 17), nn.Tanh()) for _ in range(3))
        self.norm = nn.LayerNorm(17)
        self.frozen = nn.Linear(17, 17, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.tied = nn.Linear(17, 17, bias=False)
        self.tied.weight = self.blocks[1].get_parameter("0.weight")
        self.unused = nn.Linear(3, 1)
        self.last = nn.Linear(17, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(self.frozen(x)))


def blocks_net(seed=0):
    """Without shared weights: its blocks may be wrapped each."""
    net = Net(seed)
    del net.tied
    return net


def wrapped(net, group, inner=True, **options):
    """The blocks each, and the rest."""
    if inner:
        for index, block in enumerate(net.blocks):
            net.blocks[index] = FullyShardedDataParallel(block, group, **options)
    return FullyShardedDataParallel(net, group, **options)


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS, 9, generator=generator), torch.randn(ROWS, 1, generator=generator)


def part(whole, rank, size):
    """Rows of this rank."""
    rows = ROWS // size
    return tuple(x[rank * rows : (rank + 1) * rows] for x in whole)


def backward(model, x, y, scale=1.0):
    loss = nn.functional.mse_loss(model(x).to(y.dtype), y) * scale
    loss.backward()
    return loss.detach()


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def magnitudes(model, x, y, backward=backward):
    """The mean over rows of the magnitudes of each row's gradients."""
    total: dict[Any, Any] = {}
    for row in range(len(x)):
        model.zero_grad()
        backward(model, x[row : row + 1], y[row : row + 1])
        for name, grad in gradients(model).items():
            total[name] = total.get(name, 0) + grad.abs() / len(x)
    model.zero_grad()
    return total


def rounding_bound(magnitude):
    """Both are means of the same numbers, summed in another order, over rows and, inside a product, over 17 and more
    features: each addition is off by at most 2^-24 of the sum of magnitudes."""
    return magnitude * 2.0**-23 * (64 * ROWS + 4)


def position(group):
    return dist.get_rank(group), dist.get_world_size(group)


def full_gradients(model):
    """Gradients from all ranks' shards, under the parameters' names."""
    shards = {clean(name): p for name, p in model.named_parameters()}
    weights = {name: p.detach() if p.grad is None else p.grad for name, p in shards.items()}
    everyone = ranks.gathered(model.process_group, (weights, model.local_metadata_dict()))
    whole = FullyShardedDataParallel.consolidate_shard_weights([w for w, _ in everyone], [m for _, m in everyone], False)
    return whole


def full_weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}
