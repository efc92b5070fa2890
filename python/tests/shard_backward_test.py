"""Waiting of FullyShardedDataParallel's backward pass: frozen parameters, modules that run again in it, and modules
that take part twice."""

import itertools
from typing import Any

import pytest
import ranks
import shard_models as models
import torch
import torch.distributed as dist
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from plimsoll.shard import checkpoint_wrapper
from rounding import within
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 17


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of rank 3 beside it, and a frozen norm at either end."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.base = nn.Linear(WIDTH, WIDTH)
        self.down, self.up = nn.Linear(WIDTH, 3, bias=False), nn.Linear(3, WIDTH, bias=False)
        for part in (self.before, self.base, self.after):
            part.requires_grad_(False)

    def forward(self, x):
        x = self.before(x)
        return self.after(torch.tanh(self.base(x) + self.up(self.down(x))))


class AdaptedNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(9, WIDTH)
        self.blocks = nn.ModuleList(Adapted() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))


class FrozenNet(AdaptedNet):
    """A net whose blocks are frozen as a whole: their instances have no gradients."""

    def __init__(self):
        super().__init__()
        self.blocks.requires_grad_(False)


class Reentrant(nn.Module):
    """Runs the module inside in reentrant checkpoints, one after the other."""

    def __init__(self, module, times):
        super().__init__()
        self.module, self.times = module, times

    def forward(self, x):
        for _ in range(self.times):
            x = checkpoint(self.module, x, use_reentrant=True)
        return x


class Repeated(nn.Module):
    def __init__(self, module, times):
        super().__init__()
        self.module, self.times = module, times

    def forward(self, x):
        for _ in range(self.times):
            x = self.module(x)
        return x


def assert_gradients_of_the_plain_model(group, plain, model, passes=1):
    rank, size = models.position(group)
    x, y = models.batch(0)
    magnitudes = models.magnitudes(plain, x, y)
    models.backward(plain, x, y)
    for _ in range(passes):
        model.zero_grad()
        models.backward(model, *models.part((x, y), rank, size))
        found = {name.replace("module.", ""): value for name, value in models.full_gradients(model).items()}
        for name, gradient in models.gradients(plain).items():
            name = name.replace("module.", "")
            bound = models.rounding_bound({k.replace("module.", ""): v for k, v in magnitudes.items()}[name])
            assert ((found[name] - gradient).abs() <= bound).all(), name


@ranks.case(2)
def frozen_parameters_stay_until_the_last_gradient(group):
    for make, flatten, reshard, prefetch, again in itertools.product(
        (AdaptedNet, FrozenNet), (True, False), (True, False), (True, False), ("kept", "checkpoint", "reentrant")
    ):
        net = make()
        if again == "checkpoint":
            for block in net.blocks:
                checkpoint_wrapper(block)
        options: dict[str, Any] = {"flatten_parameters": flatten, "reshard_after_forward": reshard, "prefetch": prefetch}
        if again == "reentrant":
            for index, block in enumerate(net.blocks):
                net.blocks[index] = Reentrant(Fsdp(block, group, **options), 1)
            model = Fsdp(net, group, **options)
        else:
            model = models.wrapped(net, group, **options)
        assert_gradients_of_the_plain_model(group, make(), model, passes=2)


@ranks.case(2)
def a_module_in_two_reentrant_checkpoints(group):
    for inner, outer, flatten, reshard in itertools.product((True, False), repeat=4):
        if not (inner or outer):
            continue
        options: dict[str, Any] = {"flatten_parameters": flatten, "reshard_after_forward": reshard}
        plain, net = models.blocks_net(), models.blocks_net()
        plain.blocks[1] = Repeated(plain.blocks[1], 2)
        block = Fsdp(net.blocks[1], group, **options) if inner else net.blocks[1]
        net.blocks[1] = Reentrant(block, 2)
        if outer:
            net.blocks[1] = Fsdp(net.blocks[1], group, **options)
        assert_gradients_of_the_plain_model(group, plain, Fsdp(net, group, **options), passes=2)


@ranks.case(2)
def a_module_in_two_wrapped_checkpoints(group):
    for inner, flatten, reshard in itertools.product((True, False), repeat=3):
        options: dict[str, Any] = {"flatten_parameters": flatten, "reshard_after_forward": reshard}
        plain, net = models.blocks_net(), models.blocks_net()
        plain.blocks[1] = Repeated(plain.blocks[1], 2)
        block = Fsdp(net.blocks[1], group, **options) if inner else net.blocks[1]
        net.blocks[1] = Repeated(checkpoint_wrapper(block), 2)
        assert_gradients_of_the_plain_model(group, plain, Fsdp(net, group, **options), passes=2)


@ranks.case(2)
def a_graph_may_go_back_twice(group):
    rank, size = models.position(group)
    for wrap, flatten, reshard in itertools.product((True, False), repeat=3):
        options = {"flatten_parameters": flatten, "reshard_after_forward": reshard}
        net = models.blocks_net()
        if wrap:
            checkpoint_wrapper(net.blocks[1])
        model = models.wrapped(net, group, **options)
        x, y = models.part(models.batch(0), rank, size)
        x.requires_grad_()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        once = {name: value.clone() for name, value in models.gradients(model).items()}
        (first,) = torch.autograd.grad(loss, x, retain_graph=True)
        (second,) = torch.autograd.grad(loss, x, retain_graph=True)
        assert torch.equal(first, second) and torch.equal(first, x.grad)
        loss.backward()
        for name, gradient in models.gradients(model).items():
            assert torch.equal(gradient, 2 * once[name]), name


def ordered_weights(group, passes):
    """After steps of a model with blocks in reentrant checkpoints, one of them in two, and one only there."""
    rank, size = models.position(group)
    net = models.blocks_net()
    for index, times in enumerate((1, 2, 1)):
        net.blocks[index] = Reentrant(Fsdp(net.blocks[index], group, ordered_passes=passes // size), times)
    model = Fsdp(net, group, ordered_passes=passes // size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        for first in range(0, passes, size):
            models.backward(model, *models.part(models.batch(step), first + rank, passes))
        optimizer.step()
    return models.full_weights(model)


@ranks.case(2)
def reentrant_checkpoints_have_the_bits_of_one_process_where_the_order_is_fixed(group):
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    ours, theirs = ordered_weights(group, 4), ordered_weights(alone, 4)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@ranks.case(2)
def the_whole_model_in_two_reentrant_checkpoints(group):
    rank, size = models.position(group)
    x, y = models.batch(0)
    plain, model = models.blocks_net(), models.wrapped(models.blocks_net(), group)
    loss = lambda net, x, y: nn.functional.mse_loss(
        checkpoint(net, x, use_reentrant=True) + checkpoint(net, 2 * x, use_reentrant=True), y
    )
    magnitudes = models.magnitudes(plain, x, y, lambda net, x, y: loss(net, x.clone().requires_grad_(), y).backward())
    loss(plain, x.clone().requires_grad_(), y).backward()
    mine, target = models.part((x, y), rank, size)
    loss(model, mine.clone().requires_grad_(), target).backward()
    found = models.full_gradients(model)
    for name, gradient in models.gradients(plain).items():
        # Two passes, each of which adds to what it reads of the other.
        assert within(found[name], gradient, 2 * models.rounding_bound(magnitudes[name])), name
    ordered = models.wrapped(models.blocks_net(), group, ordered_passes=1)
    with pytest.raises(RuntimeError, match="got a second one"):
        loss(ordered, mine.clone().requires_grad_(), target).backward()


@ranks.case(2)
def gradients_travel_while_reentrant_checkpoints_go_on(group):
    net = models.blocks_net()
    for index, block in enumerate(net.blocks):
        net.blocks[index] = Reentrant(Fsdp(block, group), 1)
    model = Fsdp(net, group)
    there = []
    first = net.first.forward

    def watched(x):
        out = first(x)
        out.register_hook(lambda _: there.append([block.module.flat_param_0.grad is not None for block in net.blocks]))
        return out

    net.first.forward = watched
    models.backward(model, *models.batch(0))
    assert there == [[False, True, True]], "the last one is on its way"


class InParts(torch.autograd.Function):
    """A module that runs once in forward, and in backward in three parts: for one run, it is called three times."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        rows = [part.detach().requires_grad_() for part in x.chunk(3)]
        for part, grad in zip(rows, gradient.chunk(3), strict=False):
            with torch.enable_grad():
                out = ctx.module(part)
            out.backward(grad)
        return torch.cat([part.grad for part in rows]), None


class Chunked(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return InParts.apply(x, self.module)


@ranks.case(2)
def a_module_that_runs_more_often_in_backward(group):
    for flatten in (True, False):
        net = models.blocks_net()
        net.blocks[1] = Chunked(Fsdp(net.blocks[1], group, flatten_parameters=flatten))
        model = Fsdp(net, group, flatten_parameters=flatten)
        assert_gradients_of_the_plain_model(group, models.blocks_net(), model, passes=2)
    net = models.blocks_net()
    net.blocks[1] = Chunked(Fsdp(net.blocks[1], group, ordered_passes=1))
    with pytest.raises(RuntimeError, match="expected all gradients of 0.(weight|bias) before the sum"):
        models.backward(Fsdp(net, group, ordered_passes=1), *models.batch(0))


@ranks.case(2)
def a_frozen_instance_is_released_when_its_backward_pass_is_over(group):
    model = models.wrapped(FrozenNet(), group)
    weights = [block.module.base.weight for block in model.blocks]
    seen = []
    weights_there = lambda: [weight.numel() > 0 for weight in weights]
    x = torch.randn(4, 9)
    hidden = model.module.first.forward

    def watched(x):
        out = hidden(x)
        out.register_hook(lambda _: seen.append(weights_there()))
        return out

    model.module.first.forward = watched
    model(x).sum().backward()
    assert seen == [[False] * 3]


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
