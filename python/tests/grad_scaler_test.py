"""plimsoll.amp.GradScaler beside torch.amp.GradScaler."""

import copy
import gc
import math
import pickle
import random
import warnings
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from amp_models import net
from plimsoll.amp import AutomaticLossScaler, GradScaler
from plimsoll.common import recipe
from rounding import approx, gamma, within
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

# And how many steps each is tried.
OPTIMIZERS = {
    "sgd": (lambda parameters: torch.optim.SGD(parameters, lr=0.01), 2000),
    "adamw": (lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True), 200),
    "adamw fused": (lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True), 200),
}


class Run:
    """Models and optimizers under one scaler."""

    def __init__(self, scaler, make_optimizer, count):
        self.scaler = scaler
        self.models = [net(seed, (5, 7, 3)) for seed in range(count)]
        self.optimizers = [make_optimizer(one.parameters()) for one in self.models]

    def step(self, batches, poisons, unscales):
        for one, optimizer, batch, poison in zip(self.models, self.optimizers, batches, poisons, strict=True):
            optimizer.zero_grad()
            self.scaler.scale(one(batch).square().mean()).backward()
            if poison is not None:
                one[0].weight.grad[2, 3] = poison
        for optimizer in self.optimizers:
            if unscales:
                self.scaler.unscale_(optimizer)
            self.scaler.step(optimizer)
        self.scaler.update()


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_random_steps_are_torchs_bit_for_bit(name, count, unscales):
    make_optimizer, steps = OPTIMIZERS[name]
    ours = Run(GradScaler("cpu", growth_interval=5), make_optimizer, count)
    theirs = Run(torch.amp.GradScaler("cpu", growth_interval=5), make_optimizer, count)
    dice = random.Random(1)
    skipped = 0
    for _ in range(steps):
        batches = [torch.randn(4, 5) for _ in range(count)]
        poisons = [dice.choice([math.inf, -math.inf, math.nan]) if dice.random() < 0.05 else None for _ in range(count)]
        skipped += any(poison is not None for poison in poisons)
        ours.step(batches, poisons, unscales)
        theirs.step(batches, poisons, unscales)
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()
        for mine, other in zip(ours.models, theirs.models, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), other.parameters(), strict=True))
    assert skipped > steps / 40


def scaled_model(poison=None):
    one: Any = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    scaler = GradScaler("cpu")
    scaler.scale(one(torch.ones(4, 3)).sum()).backward()
    if poison is not None:
        one.bias.grad[1] = poison
    return one, optimizer, scaler


# Norm of the largest step of `one.bias`: lr 0.1 on a gradient clipped to 1e-3, and the rounding of numbers below 1.
CLIPPED_STEP = 0.1 * 1e-3 + 2 * 2.0**-24


def test_clipping_is_clip_grad_norm_():
    one, optimizer, scaler = scaled_model()
    scaler.unscale_(optimizer, max_norm=0.5)
    plain: Any = nn.Linear(3, 2)
    plain(torch.ones(4, 3)).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    # Roundings of either: of the norm, its sum with 1e-6, the factor and the product.
    assert within(one.weight.grad, plain.weight.grad, gamma(8) * plain.weight.grad.abs())
    report = scaler.last_report(optimizer)
    # Roundings of torch: 8 squares of two tensors and their sums, and three roots.
    assert report.grad_norm == approx(norm.item(), 16)
    assert not report.skipped


def test_step_clips_too():
    one, optimizer, scaler = scaled_model()
    before = one.bias.detach().clone()
    scaler.step(optimizer, max_norm=1e-3)
    assert 0 < (one.bias - before).norm() <= CLIPPED_STEP


def test_a_disabled_scaler_clips_too():
    one, optimizer, _ = scaled_model()
    scaler = GradScaler("cpu", enabled=False)
    before = one.bias.detach().clone()
    scaler.step(optimizer, max_norm=1e-3)
    scaler.update()
    assert 0 < (one.bias - before).norm() <= CLIPPED_STEP


def test_a_disabled_scaler_clips_sparse_gradients_too():
    parameter = nn.Parameter(torch.zeros(6, 1))
    parameter.grad = sparse_gradient(torch.float32, False, [2.0, 2.0, 2.0])
    GradScaler("cpu", enabled=False).step(torch.optim.SGD([parameter], lr=1.0), max_norm=1.0)
    torch.testing.assert_close(parameter.detach().norm(), torch.tensor(1.0))


def test_the_report_names_the_parameter():
    one, optimizer, scaler = scaled_model(math.nan)
    before = one.weight.detach().clone()
    scaler.step(optimizer)
    report = scaler.last_report(optimizer)
    assert report.skipped and report.non_finite == 1
    assert report.first_non_finite == "parameter 1 of group 0"
    assert torch.equal(one.weight, before)


def test_a_scaled_loss_is_never_fp16():
    scaler = GradScaler("cpu")
    assert scaler.scale(torch.tensor(100.0, dtype=torch.float16)).item() == 6553600
    losses = scaler.scale([torch.ones(2, dtype=torch.bfloat16), torch.ones(())])
    assert [loss.dtype for loss in losses] == [torch.float32, torch.float32]


def test_sparse_gradients_are_unscaled():
    embedding = nn.Embedding.from_pretrained(torch.zeros(6, 2), freeze=False, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    scaler = GradScaler("cpu")
    scaler.scale(embedding(torch.tensor([1, 1, 4])).sum()).backward()
    scaler.step(optimizer)
    assert torch.equal(embedding.weight, -torch.tensor([0, 2.0, 0, 0, 1, 0])[:, None].expand(6, 2))


def sparse_gradient(dtype, coalesced, values):
    """Gradient of six rows, with two entries for row 4."""
    grad = torch.sparse_coo_tensor(torch.tensor([[4, 1, 4]]), torch.tensor(values, dtype=dtype)[:, None], (6, 1))
    return grad.coalesce() if coalesced else grad


@pytest.mark.parametrize("coalesced", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_sparse_gradients_are_torchs_bit_for_bit(dtype, coalesced):
    large = torch.finfo(dtype).max
    for values in ([1.5, -2.0, 4.0], [large, 1.0, large], [-large, 1.0, -large / 2], [large, 1.0, -large], [1.0, math.inf, 2.0]):
        found, grads = [], []
        for scaler in (GradScaler("cpu"), torch.amp.GradScaler("cpu")):
            parameter = nn.Parameter(torch.zeros(6, 1, dtype=dtype))
            parameter.grad = sparse_gradient(dtype, coalesced, values)
            optimizer = torch.optim.SGD([parameter], lr=1.0)
            scaler.scale(torch.ones(()))
            result = scaler._unscale_grads_(optimizer, torch.tensor(2.0**-16), torch.zeros(()), allow_fp16=True)
            found.append([value.item() for value in result.values()])
            grads.append(parameter.grad)
        assert found[0] == found[1], values
        assert grads[0].is_coalesced() == grads[1].is_coalesced()
        assert torch.equal(grads[0]._indices(), grads[1]._indices())
        torch.testing.assert_close(grads[0]._values(), grads[1]._values(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_sparse_entries_are_made_without_the_scale(dtype):
    # 2^127 twice: with the scale on them their sum is Inf.
    parameter = nn.Parameter(torch.zeros(6, 1, dtype=dtype))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = GradScaler("cpu", init_scale=2.0**126)
    for max_norm, stepped in ((None, 4.0), (1.0, 4 / (20**0.5 + 1e-6))):
        parameter.data.zero_()
        scaler.scale(torch.ones(()))
        parameter.grad = sparse_gradient(dtype, False, [2.0**127, 2.0**127, 2.0**127])
        scaler.step(optimizer, max_norm=max_norm)
        report: Any = scaler.last_report(optimizer)
        scaler.update()
        assert not report.skipped and report.grad_norm == approx(20**0.5, 2, torch.float64)
        assert -parameter[4].item() == approx(stepped, 4, dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_goes_on_where_every_step_is_skipped(name):
    make_optimizer, _ = OPTIMIZERS[name]
    ours, theirs = (Run(scaler, make_optimizer, 1) for scaler in (GradScaler("cpu"), torch.amp.GradScaler("cpu")))
    before = copy.deepcopy(ours.models[0].state_dict())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(200):  # 2^16 becomes 0 after 166 of them
            batch = [torch.randn(4, 5)]
            ours.step(batch, [math.nan], False)
            theirs.step(batch, [math.nan], False)
            assert ours.scaler.state_dict() == theirs.scaler.state_dict()
    assert ours.scaler.get_scale() == 0
    assert [str(each.message).partition(",")[0] for each in said] == ["GradScaler: the scale has come down to 2.94e-39"]
    # Gradients that are finite again, of a loss times zero: torch divides by it, and has NaN in its weights.
    for unscales in (False, True):
        ours.step([torch.randn(4, 5)], [None], unscales)
        assert ours.scaler.last_report(ours.optimizers[0]).skipped
    assert all(torch.equal(value, before[name]) for name, value in ours.models[0].state_dict().items())
    ours.scaler.update(1024.0)
    ours.step([torch.randn(4, 5)], [None], False)
    assert not ours.scaler.last_report(ours.optimizers[0]).skipped


def test_the_automatic_scale_comes_back_from_nothing():
    run = Run(AutomaticLossScaler("cpu", growth_interval=1), lambda parameters: torch.optim.SGD(parameters, lr=0.1), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(142):  # to 2^-126, whose reciprocal is the last that is normal
            run.step([torch.randn(4, 5)], [math.nan], False)
    for _ in range(20):
        run.step([torch.randn(4, 5)], [None], False)
    assert run.scaler.get_scale() > 1


def test_a_report_is_of_its_own_optimizer_and_goes_with_it():
    one, optimizer, scaler = scaled_model()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.last_report(optimizer) is not None
    assert copy.deepcopy(scaler).last_report(optimizer) is None
    number = id(optimizer)
    del optimizer
    gc.collect()
    assert not scaler._reports._of
    for _ in range(1000):  # until one has the place of the first
        other = torch.optim.SGD(one.parameters(), lr=0.1)
        assert scaler.last_report(other) is None
        if id(other) == number:
            break
        del other


def test_bounds_hold():
    one, optimizer, _ = scaled_model()
    scaler = GradScaler("cpu", init_scale=64, growth_interval=1, min_scale=32, max_scale=100)
    for expected, poison in [(100, None), (100, None), (50, math.inf), (32, math.inf), (32, math.inf)]:
        optimizer.zero_grad()
        scaler.scale(one(torch.ones(1, 3)).sum()).backward()
        if poison:
            one.bias.grad.fill_(poison)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == expected


def test_bad_use_is_named():
    one, optimizer, scaler = scaled_model()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="is being called after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(ValueError, match="0 <= min_scale <= max_scale, got 2 and 1"):
        GradScaler(min_scale=2, max_scale=1)
    half = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.SGD([half], lr=0.1)
    scaler = GradScaler("cpu")
    scaler.scale((half.float() * 1e-3).sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients: expected fp32 or bf16, got fp16 in parameter 0 of group 0"):
        scaler.unscale_(optimizer)


def test_it_copies_pickles_and_goes_on():
    _, optimizer, scaler = scaled_model()
    scaler.step(optimizer)
    scaler.update()
    for again in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        assert again.state_dict() == scaler.state_dict()
    other = GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        other.load_state_dict(GradScaler("cpu", enabled=False).state_dict())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    "rule,seen",
    [
        (recipe.DelayedScaling(), True),
        (recipe.DelayedScaling(fp8_format=recipe.Format.E4M3), False),
        (recipe.Float8CurrentScaling(fp8_format=recipe.Format.E4M3), True),
        (recipe.MXFP8BlockScaling(), True),
        (recipe.NVFP4BlockScaling(), True),
    ],
)
def test_an_inf_among_the_gradients_is_seen_but_under_delayed_e4m3(rule, seen, value, bias):
    torch.manual_seed(0)
    layer, x = te.Linear(32, 16, bias=bias), torch.randn(8, 32)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), 1e-3), GradScaler("cpu", init_scale=4.0)
    stays = []
    for factor in (1.0, value):
        optimizer.zero_grad()
        with te.fp8_autocast(fp8_recipe=rule):
            y = layer(x)
        factors = torch.ones_like(y)
        factors[0, 0] = factor
        y.register_hook(factors.mul)
        scaler.scale(y.sum()).backward()
        before = layer.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        stays.append(torch.equal(layer.weight, before))
    assert stays == [False, seen or bias or value != value]
