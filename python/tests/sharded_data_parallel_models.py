"""Models under ShardedDataParallel beside copies that are not sharded, and the averages of their gradients."""

import copy
import functools

import ranks
import torch
import torch.distributed as dist
from plimsoll.shard import OSS, ShardedDataParallel
from rounding import gamma, within
from torch import nn


class Layers(nn.Module):
    """Four weights of one shape, whose gradients come from the last to the first, and a way to break off in between."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(4))
        self.breaks = {}  # before the gradient of a layer: an exception

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            call = _Breaking(layer, self.breaks[index]) if index in self.breaks else layer
            x = torch.tanh(call(x))
        return x


class _Breaking:
    def __init__(self, layer, error):
        self.layer, self.error = layer, error

    def __call__(self, x):
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(self.fail)
        return y

    def fail(self, _):
        raise self.error


def wrapped(module, group, **options):
    optimizer = OSS(module.parameters(), torch.optim.SGD, group=group, lr=0.5)
    return ShardedDataParallel(module, optimizer, group, **options), optimizer


TERMS = 2 * 2 * 3  # of a gradient's average: two ranks, a layer that runs twice, three passes


def add_magnitude(parameter, gradient):
    """Adds up the magnitudes of the gradients that .grad adds up."""
    before = 0 if parameter.grad is None else parameter.magnitude
    parameter.magnitude = before + gradient.abs()


def sharded(module, group, **options):
    """The module on several ranks, its optimizer, and a copy that is not sharded."""
    alone = copy.deepcopy(module)
    for parameter in filter(lambda each: each.requires_grad, alone.parameters()):
        parameter.register_hook(functools.partial(add_magnitude, parameter))
    return *wrapped(module, group, **options), alone


def rows(group, step=0):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank(group))
    return torch.randn(3, 6, generator=generator)


def averaged(group, alone):
    """The mean over two ranks of what each has computed by itself; None where no rank has anything."""
    result = {}
    for name, parameter in alone.named_parameters():
        parts = ranks.gathered(group, parameter.grad)
        known = [part for part in parts if part is not None]
        result[name] = sum(part / len(parts) for part in known) if known else None
    return result


def assert_averaged(group, parallel, optimizer, alone, exact=True):
    """Each rank has the averages of the parameters that it updates, and nothing of the others."""
    rank = dist.get_rank(group)
    everyones = ranks.gathered(group, {name: getattr(p, "magnitude", 0) for name, p in alone.named_parameters()})
    magnitudes = {name: sum(each[name] for each in everyones) / len(everyones) for name in everyones[0]}
    for name, average in averaged(group, alone).items():
        parameter = parallel.module.get_parameter(name)
        if optimizer.param_to_rank[parameter] != rank or average is None:
            assert parameter.grad is None, name
        elif exact:
            assert torch.equal(parameter.grad, average), name
        else:  # the same terms in another order
            assert within(parameter.grad, average, gamma(2 * TERMS) * magnitudes[name]), name


def backward(module, x):
    module(x).square().sum().backward()


def assert_next_averaged(group, parallel, optimizer, alone, step=0, exact=True):
    """A pass from no gradients on has the averages."""
    optimizer.zero_grad()
    alone.zero_grad()
    backward(parallel, rows(group, step))
    backward(alone, rows(group, step))
    assert_averaged(group, parallel, optimizer, alone, exact)
