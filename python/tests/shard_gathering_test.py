"""Number of times that FullyShardedDataParallel gathers parameters and reduces gradients; no pass reads old values."""

import functools
import itertools

import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from rounding import rounds_alike
from torch import nn

WIDTH = 17


class Stage(nn.Module):
    """A stage whose own layer comes after the instances inside it."""

    def __init__(self, group, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Fsdp(nn.Linear(WIDTH, WIDTH), group, **options) for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def collectives(run, name):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return sum(name in event.name for event in profile.events())


def gathers(run):
    return collectives(run, "all_gather")


@ranks.case(2)
def gradients_of_inputs_alone_leave_the_parameters_be(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    for flatten, between in itertools.product((True, False), repeat=2):
        plain = models.wrapped(models.blocks_net(), group, flatten_parameters=flatten)
        model = models.wrapped(models.blocks_net(), group, flatten_parameters=flatten)
        models.backward(plain, x, y)
        asked = x.clone().requires_grad_()
        loss = nn.functional.mse_loss(model(asked), y)
        if between:
            with model.no_sync():
                torch.autograd.grad(loss, asked, retain_graph=True)
        assert collectives(functools.partial(torch.autograd.grad, loss, asked, retain_graph=True), "all_to_all") == 0
        assert all(p.grad is None for p in model.parameters())
        loss.backward()
        ours, theirs = models.gradients(model), models.gradients(plain)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


@ranks.case(2)
def an_outer_instance_that_is_done_is_not_gathered_again(group):
    for prefetch in (True, False):
        torch.manual_seed(0)
        stage = Fsdp(Stage(group, prefetch=prefetch), group, prefetch=prefetch)
        model = Fsdp(nn.Sequential(nn.Linear(9, WIDTH), stage), group, prefetch=prefetch)
        # The outermost one's once; that of the stage, and the blocks', before forward and before backward.
        assert gathers(lambda model=model: model(torch.randn(4, 9)).sum().backward()) == 1 + 2 * 4


@ranks.case(2)
def what_stays_until_backward_stays_while_gradients_add_up(group):
    rank, size = models.position(group)
    plains = {dtype: models.blocks_net().to(dtype) for dtype in (torch.float32, torch.float64)}
    references = [torch.optim.SGD(plain.parameters(), lr=0.1) for plain in plains.values()]
    model = models.wrapped(models.blocks_net(), group, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    groups = sum(len(instance._groups) for instance in model._instances())

    def step(number):
        with model.no_sync():
            for part in range(2):
                x, y = models.part(models.batch(number), 3 * rank + part, 3 * size)
                models.backward(model, x, y, 1 / 3)
        x, y = models.part(models.batch(number), 3 * rank + 2, 3 * size)
        models.backward(model, x, y, 1 / 3)
        optimizer.step()
        optimizer.zero_grad()

    for number in range(3):
        assert gathers(functools.partial(step, number)) == groups, "once for all three"
        for (dtype, plain), reference in zip(plains.items(), references, strict=True):
            models.backward(plain, *(each.to(dtype) for each in models.batch(number)))
            reference.step()
            reference.zero_grad()
    # A layer's weight and bias together: the few roundings of a short bias can all be lucky in the reference.
    states = [model.state_dict(), *(plain.state_dict() for plain in plains.values())]
    assert states[0].keys() == states[1].keys()
    for layer in {name.rpartition(".")[0] for name in states[1]}:
        names = [name for name in states[1] if name.rpartition(".")[0] == layer]
        assert rounds_alike(*(torch.cat([each[name].flatten().double() for name in names]) for each in states)), layer


CHANGES = {
    "a step": lambda model: torch.optim.SGD(model.parameters(), lr=0.1).step(),
    "in place": lambda model: [p.detach().mul_(2) for p in model.parameters()],
    "loading": lambda model: model.load_state_dict(models.blocks_net(seed=7).state_dict()),
    "local loading": lambda model: model.load_local_state_dict(
        models.wrapped(models.blocks_net(seed=7), model.process_group, reshard_after_forward=False).local_state_dict()
    ),
}


@ranks.case(2)
def what_stayed_is_gathered_again_where_it_changed(group):
    """After no_sync(), and after a forward pass without a backward pass: the outermost instance's stay there, too."""
    x, y = models.batch(0)
    for reshard, kept, (name, change) in itertools.product((False, True), (True, False), CHANGES.items()):
        model = models.wrapped(models.blocks_net(), group, reshard_after_forward=reshard)
        models.backward(model, x, y)  # gradients for the step
        if kept:
            with model.no_sync():
                models.backward(model, x, y)
        else:
            model(x)
        change(model)
        plain = models.blocks_net()
        plain.load_state_dict(model.state_dict())
        assert torch.equal(model(x), plain(x)), (reshard, kept, name)


@ranks.case(2)
def values_written_behind_autograds_back_are_gathered(group):
    x, y = models.batch(0)
    model = models.wrapped(models.blocks_net(), group, reshard_after_forward=False)
    model(x)
    for parameter in model.parameters():
        parameter.data.mul_(2)
    plain = models.blocks_net()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
