"""requires_grad of a FullyShardedDataParallel's parameters that changes after wrapping: as in a model that is not sharded."""

import copy
import itertools

import pytest
import ranks
import shard_models as models
import torch
from rounding import rounds_alike
from torch import nn

WAYS = {  # to freeze the middle block, or to train it again
    "instance": lambda model, on: model.blocks[1].requires_grad_(on),
    "module inside": lambda model, on: model.blocks[1].module.requires_grad_(on),
    "part of it": lambda model, on: model.blocks[1].module[0].requires_grad_(on),
    "shards": lambda model, on: [p.requires_grad_(on) for p in model.blocks[1].parameters()],
    "whole parameters": lambda model, on: [
        p.requires_grad_(on) for p in (model.blocks[1].module[0].weight, model.blocks[1].module[0].bias)
    ],
}


def summoned(model, on):
    with model.summon_full_params():
        model.blocks[1].module.requires_grad_(on)


WAYS["summoned"] = summoned


def plain_weights_after(steps, rate, dtype):
    """steps: of each whether the middle block trains."""
    plain = models.blocks_net().to(dtype)
    del plain.unused  # has zeros for gradients in shards, so that its weights decay
    optimizer = torch.optim.AdamW(plain.parameters(), lr=rate)
    for step, on in enumerate(steps):
        plain.blocks[1].requires_grad_(on)
        optimizer.zero_grad()
        models.backward(plain, *(each.to(dtype) for each in models.batch(step)))
        optimizer.step()
    return plain.state_dict()


@ranks.case(2)
def a_frozen_instance_stays_as_it_is_and_trains_again(group):
    rank, size = models.position(group)
    steps = (True, False, False, True)
    expected, exact = (plain_weights_after(steps, 1e-3, dtype) for dtype in (torch.float32, torch.float64))
    for (name, freeze), flatten in itertools.product(WAYS.items(), (True, False)):
        net = models.blocks_net()
        del net.unused
        model = models.wrapped(net, group, flatten_parameters=flatten)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, on in enumerate(steps):
            freeze(model, on)
            before = copy.deepcopy(model.state_dict())
            optimizer.zero_grad()
            models.backward(model, *models.part(models.batch(step), rank, size))
            leaves = list(model.blocks[1].parameters())
            assert all(leaf.requires_grad == on and (leaf.grad is not None) == on for leaf in leaves), (name, step)
            optimizer.step()
            after = model.state_dict()
            assert torch.equal(before["blocks.1.0.weight"], after["blocks.1.0.weight"]) != on, (name, step)
        for key, value in model.state_dict().items():
            assert rounds_alike(value, expected[key], exact[key]), (name, key)


@ranks.case(2)
def one_of_several_parameters_is_frozen_where_it_has_a_shard(group):
    rank, size = models.position(group)
    freezes = (
        lambda model: model.first.weight.requires_grad_(False),
        lambda model: model.module.first._parameters["weight"].requires_grad_(False),
        lambda model: dict(model.named_parameters())["first.weight"].requires_grad_(False),
    )
    for freeze, inner in itertools.product(freezes, (True, False)):
        model = models.wrapped(models.blocks_net(), group, inner, flatten_parameters=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        models.backward(model, *models.part(models.batch(0), rank, size))
        optimizer.step()
        optimizer.zero_grad()
        before = copy.deepcopy(model.state_dict())
        freeze(model)
        models.backward(model, *models.part(models.batch(0), rank, size))
        optimizer.step()
        after = model.state_dict()
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert same == {"first.weight", "frozen.weight"}
        model.first.weight.requires_grad_(True)
        models.backward(model, *models.part(models.batch(0), rank, size))
        optimizer.step()
        assert not torch.equal(model.state_dict()["first.weight"], after["first.weight"])


@ranks.case(2)
def one_of_several_parameters_of_a_flat_shard_is_an_error_that_names_it(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    freezes = (
        lambda model, on: model.first.weight.requires_grad_(on),
        lambda model, on: model.module.first.requires_grad_(on),
        lambda model, on: setattr(model.module.first.weight, "requires_grad", on),
    )
    for freeze in freezes:
        model = models.wrapped(models.blocks_net(), group)
        models.backward(model, x, y)
        freeze(model, False)
        with pytest.raises(ValueError, match=r"got \d of 8 frozen \(first.weight.*flatten_parameters=False"):
            model(x)
        assert model.state_dict()["first.weight"].isfinite().all()
        freeze(model, True)
        models.backward(model, x, y)
    model = models.wrapped(models.blocks_net(), group)
    model.module.frozen.weight.requires_grad_(True)  # alone in its shard
    models.backward(model, x, y)
    assert model.flat_param_1.requires_grad and model.flat_param_1.grad.any()


@ranks.case(2)
def everything_may_be_frozen_for_a_while(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    for flatten in (True, False):
        model = models.wrapped(models.blocks_net(), group, flatten_parameters=flatten)
        model.requires_grad_(False)
        assert not model(x).requires_grad
        x.requires_grad_()
        models.backward(model, x, y)
        assert x.grad.any() and all(p.grad is None for p in model.parameters())
        model.requires_grad_(True)
        models.backward(model, x, y)
        assert all(p.grad is not None for p in model.parameters())
        x = x.detach()


@ranks.case(2)
def gradients_from_before_it_was_frozen_still_travel(group):
    """Gradients that no_sync() kept on their rank; as they would stay in .grad of a parameter."""
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    for flatten in (True, False):
        found = []
        for frozen in (False, True):
            model = models.wrapped(models.blocks_net(), group, flatten_parameters=flatten)
            with model.no_sync():
                models.backward(model, x, y)
            if frozen:
                model.blocks[1].requires_grad_(False)
            models.backward(model, x, y)
            found.append([p.grad for p in model.blocks[1].parameters()])
        assert all(torch.equal(one, 2 * half) for one, half in zip(*found, strict=False))


@ranks.case(2)
def a_parameter_frozen_after_the_forward_pass_gets_no_gradient(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    model = models.wrapped(models.blocks_net(), group)
    loss = nn.functional.mse_loss(model(x), y)
    model.blocks[1].requires_grad_(False)
    loss.backward()
    assert model.blocks[1].flat_param_0.grad is None and model.blocks[0].flat_param_0.grad.any()


@ranks.case(2)
def copies_are_frozen_where_the_model_is(group):
    model = models.wrapped(models.blocks_net(), group)
    model.blocks[1].requires_grad_(False)
    again = copy.deepcopy(model)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    assert not again.blocks[1].flat_param_0.requires_grad
    again.blocks[1].module.requires_grad_(True)
    models.backward(again, *models.batch(0))
    assert again.blocks[1].flat_param_0.grad.any() and not model.blocks[1].flat_param_0.requires_grad


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
