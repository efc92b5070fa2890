"""A small network, and its training under the recipe Auto."""

import os
import pathlib
from typing import Any

import plimsoll.pytorch as te
import torch
from plimsoll.common.recipe import Auto

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))

# Bounds between the errors of these models' operands, and no patience, so that products go up and down in a few steps.
RESTLESS: dict[str, Any] = {
    "every": 1,
    "votes": 1,
    "ballots": 2,
    "quiet": 1,
    "window": 1,
    "bound": (1.1,) * 3,
    "demote_share": 1.0,
}
# Every operand is within them.
CALM: dict[str, Any] = {"bound": (1e9,) * 3, "flushed": 1.0}


class Net(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(5)
        self.first = te.Linear(32, 48, **options)
        self.mlp = te.LayerNormMLP(48, 64, **options)
        self.last = torch.nn.ModuleDict({"out": te.Linear(48, 16, **options)})

    def forward(self, x):
        return self.last["out"](self.mlp(self.first(x)))


class Wrapper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = Net()

    def forward(self, x):
        return self.module(x)


PRODUCTS = {
    f"{layer}/{product}"
    for layer in ("first", "mlp.fc1", "mlp.fc2", "last.out")
    for product in ("output", "grad_input", "grad_weight")
}


def batch(step, outlier=False):
    x = torch.randn(24, 32, generator=torch.Generator().manual_seed(step))
    if outlier:
        x[:, 7] = 2.0**20
    return x


def train(auto, model, steps, call=None, group=None):
    """Losses and changes of these steps, of all there are 100. Every third batch but one has an outlier in a column."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    losses, changes = [], []
    for step in steps:
        optimizer.zero_grad()
        with te.autocast(recipe=auto, amax_reduction_group=group):
            output = (call or model)(batch(step, outlier=step % 3 == 1))
        loss = output.float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        changes += auto.end_step(step, 100) if isinstance(auto, Auto) else []
    return losses, [str(change) for change in changes]


def bits_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different
