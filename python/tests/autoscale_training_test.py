"""Unmodified models and torch's own optimizers on scaled tensors, against the same in FP32."""

import contextlib
import copy
import io
from typing import Any

import autoscale_models as models
import plimsoll
import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from rounded_results import RoundedResults
from rounding import approx, gamma, rounds_alike, within
from torch import nn


def fp16():
    """A scope in which torch rounds every result to FP16's significand, as the data of scaled tensors are."""
    return RoundedResults(11)


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_trains_as_in_fp32(name):
    reference, _ = models.train(name, 50, prepare=lambda model: model)
    rounded, _ = models.train(name, 50, prepare=lambda model: model, scope=fp16)
    losses, model = models.train(name, 50, prepare=plimsoll.autoscale)
    assert rounds_alike(losses, rounded, reference)
    report = autoscale.report(model)
    assert report.calls > 1000 and report.without_rule == []
    for parameter in model.parameters():
        assert autoscale.get_data_scale(parameter)[0].dtype == torch.float16


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))


def step(model, optimizer, steps=3, scope=contextlib.nullcontext):
    torch.manual_seed(9)
    for _ in range(steps):
        optimizer.zero_grad()
        x, target = torch.randn(16, 12), torch.randint(5, (16,))
        with scope():
            F.cross_entropy(model(x), target).backward()
        optimizer.step()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_makes_the_steps_of_fp32(name):
    reference, rounded, model = small(), small(), autoscale.autoscale(small())
    step(reference, OPTIMIZERS[name](reference.parameters()))
    step(rounded, OPTIMIZERS[name](rounded.parameters()), scope=fp16)
    step(model, OPTIMIZERS[name](model.parameters()))
    for ours, theirs, expected in zip(*(each.parameters() for each in (model, rounded, reference)), strict=True):
        # The rounded run's own weights stay in FP32; data are rounded once more.
        error = (autoscale.value(ours) - expected).norm()
        assert error <= 4 * (theirs - expected).norm() + gamma(1, torch.float16) * expected.norm()


def test_steps_below_half_a_unit_are_lost_by_rounding_to_nearest_alone():
    weights = {}
    for rounding in ("nearest", "stochastic", "remainder"):
        model: Any = autoscale.autoscale(nn.Linear(64, 64, bias=False), rounding=rounding)
        with torch.no_grad():
            model.weight.fill_(1.0)
            torch.manual_seed(1)
            for _ in range(64):
                model.weight.add_(torch.ones(64, 64), alpha=2.0**-14)
        weights[rounding] = autoscale.value(model.weight).mean().item()
    assert weights["nearest"] == 1.0 and weights["remainder"] == 1 + 2.0**-8
    # The mean of 4,096 weights: each step's rounding has a variance of at most (2^-10 / 2)^2.
    assert abs(weights["stochastic"] - (1 + 2.0**-8)) < 5 * 2.0**-11 * (64 / 4096) ** 0.5


def test_gradients_of_arguments_and_functions():
    x = torch.randn(6, requires_grad=True)
    loss: Any = autoscale.autoscale(lambda a: (a * a).sum())(x)
    assert autoscale.is_scaled(loss)
    loss.backward()
    assert x.grad is not None and not autoscale.is_scaled(x.grad)
    assert within(x.grad, 2 * x, gamma(4, torch.float16) * (2 * x).abs())
    with pytest.raises(TypeError, match="expected a torch.nn.Module or a function, got int"):
        plimsoll.autoscale(3)  # type: ignore[operator]  # a module that is called


def test_torch_func_transforms_functions_of_scaled_tensors():
    x = torch.randn(3, 4)
    doubled = torch.func.vmap(lambda row: row * 2)(autoscale.as_scaled(x))
    gradient = torch.func.grad(lambda a: (a * a).sum())(autoscale.as_scaled(x))
    for result in (doubled, gradient):
        smallest = 2.0**-24 * autoscale.get_data_scale(result)[1]  # what a subnormal number of the data cannot show
        assert within(autoscale.value(result), 2 * x, gamma(2, torch.float16) * (2 * x).abs() + smallest)


def test_torch_func_transforms_a_module_and_its_loss():
    from torch.func import functional_call, grad, vmap

    def built():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))

    x, y = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 1, 0])

    def gradients(model):
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(of, inputs, targets):
            return F.cross_entropy(functional_call(model, of, (inputs,)), targets)

        per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x[:, None], y[:, None])
        return [*grad(loss)(parameters, x, y).values(), *per_sample.values()]

    with fp16():
        rounded = gradients(built())
    model: Any = autoscale.autoscale(built())
    for got, theirs, expected in zip(gradients(model), rounded, gradients(built()), strict=True):
        assert rounds_alike(autoscale.value(got), theirs, expected)


def test_clipping_and_accumulation_see_values():
    model: Any = autoscale.autoscale(small())
    for _ in range(2):
        (F.cross_entropy(model(torch.ones(4, 12)), torch.zeros(4, dtype=torch.int64)) * 100).backward()
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    after = torch.stack([autoscale.value(p.grad).double().square().sum() for p in model.parameters()]).sum().sqrt()
    assert before.item() > 1 and after == approx(0.5, 4, torch.float16)


def test_recomputed_activations_give_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    model: Any = autoscale.autoscale(small())
    x = torch.randn(4, 12)
    model(x).square().sum().backward()
    expected = [autoscale.value(p.grad).clone() for p in model.parameters()]
    model.zero_grad()
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    assert all(torch.equal(autoscale.value(p.grad), grad) for p, grad in zip(model.parameters(), expected, strict=True))


def test_a_state_dict_holds_data_and_scales_and_loads_again():
    model: Any = autoscale.autoscale(small())
    state = model.state_dict()
    assert state["0.weight"].dtype == torch.float16 and state["0.weight.scale"].dtype == torch.float64
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other: Any = autoscale.autoscale(small(seed=1))
    other.load_state_dict(torch.load(file))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(autoscale.value(a), autoscale.value(b))
    plain = small(seed=2)
    other.load_state_dict(plain.state_dict())
    weight = plain[0].weight
    smallest = 2.0**-25 * autoscale.get_data_scale(other[0].weight)[1]  # half of FP16's smallest number
    assert within(autoscale.value(other[0].weight), weight, gamma(1, torch.float16) * weight.abs() + smallest)


def test_a_copied_model_is_its_own():
    model: Any = autoscale.autoscale(small())
    twin = copy.deepcopy(model)
    step(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    assert not torch.equal(autoscale.value(model[0].weight), autoscale.value(twin[0].weight))


def test_tied_parameters_stay_tied():
    model: Any = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    autoscale.autoscale(model)
    assert model["a"].weight is model["b"].weight


def test_options_are_checked():
    with pytest.raises(ValueError, match="expected dtype to be one of torch.float16"):
        autoscale.autoscale(small(), dtype=torch.int8)
    with pytest.raises(ValueError, match="expected rounding to be one of nearest, stochastic, remainder, got 'up'"):
        autoscale.autoscale(small(), rounding="up")
    with pytest.raises(TypeError, match="report: expected a scaled tensor"):
        autoscale.report(small())
