"""The methods of scaling as policies of one engine: where exponents come from, and what becomes of a range that FP16 lacks."""

import contextlib
import copy
import gc
import weakref
from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from plimsoll.autoscale import compare, compare_command, policy
from plimsoll.autoscale.loss_scaling import scaler_of
from rounded_results import RoundedResults
from rounding import approx, rounds_alike
from torch import nn


def scale(x: Any) -> Any:
    return autoscale.get_data_scale(x)[1]


def data(x: Any) -> torch.Tensor:
    return autoscale.get_data_scale(x)[0]


def ones(*shape: int, of: str) -> torch.Tensor:
    return autoscale.as_scaled(torch.ones(*shape), policy=of)


def gradient(of, factor: float = 1.0):
    """Gradient of a weight, and the weight; the gradient is 2 * factor."""
    layer: Any = autoscale.autoscale(nn.Linear(1, 1, bias=False), policy=of)
    (layer(torch.full((2, 1), factor)).sum()).backward()
    return layer.weight.grad, layer


@pytest.mark.parametrize("name", [name for name in policy.NAMES if name not in ("unit_scaling",)])
def test_each_policy_trains_as_fp32(name):
    def train(prepare, scope=contextlib.nullcontext):
        torch.manual_seed(0)
        model = prepare(nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(32, 12), torch.randint(5, (32,))
        losses = []
        for _ in range(12):
            optimizer.zero_grad()
            with scope():
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.tensor(losses, dtype=torch.float64)

    expected = train(lambda model: model)
    # FP8 codes, where the policy has some, keep 4 bits of an operand.
    bits = 4 if "fp8" in name else None
    rounded = train(lambda model: model, lambda: RoundedResults(11, operand_bits=bits))
    assert rounds_alike(train(lambda model: autoscale.autoscale(model, policy=name)), rounded, expected)


def test_what_fp16_does_not_hold_overflows_without_scales_and_with_none():
    x = torch.full((4, 64), 128.0)
    for name, finite in (
        ("none", False),
        ("loss_scale", False),
        ("constant_bias(10)", True),
        ("amax", True),
        ("autoscale", True),
    ):
        product = autoscale.as_scaled(x, policy=name)
        assert autoscale.value(product @ product.t()).isfinite().all() == finite, name
        assert autoscale.value(product * product * 8).isfinite().all() == finite, name


def test_a_loss_scale_is_where_gradients_begin_and_steps_see_values():
    grad, _ = gradient("loss_scale(1024)")
    assert scale(grad) == 2.0**-10 and data(grad).item() == 2048 and autoscale.value(grad).item() == 2
    for name in ("none", "constant_bias(0)"):
        assert scale(gradient(name)[0]) == 1
    assert scale(gradient("constant_bias(-3)")[0]) == 2.0**-3


def test_a_step_whose_gradients_overflow_is_skipped_and_the_loss_scale_halved():
    for name in ("dynamic_loss_scale", "automatic_loss_scale"):
        grad, layer = gradient(name)  # 2 * 2^16 is beyond FP16
        assert data(grad).isinf().all()
        before = autoscale.value(layer.weight).clone()
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        optimizer.step()
        assert layer.weight.grad is None and torch.equal(autoscale.value(layer.weight), before)
        layer(torch.ones(1, 1)).sum().backward()
        assert scale(layer.weight.grad) == 2.0**-15
        optimizer.step()
        assert not torch.equal(autoscale.value(layer.weight), before)


def test_a_dynamic_loss_scale_grows_after_clean_steps():
    layer: Any = autoscale.autoscale(nn.Linear(1, 1), policy=policy.dynamic_loss_scale(2.0, growth_interval=3))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    scales = []
    for _ in range(4):
        optimizer.zero_grad()
        layer(torch.ones(1, 1)).sum().backward()
        scales.append(1 / scale(layer.weight.grad))
        optimizer.step()
    assert scales == [2, 2, 2, 4]


def scales_of_steps(layers, optimizers, steps, x=1.0):
    """The loss scale of each step."""
    scales = []
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        layers(torch.full((1, 1), x)).sum().backward()
        grads = [p.grad for p in layers.parameters() if p.grad is not None]
        scales.append(1 / scale(grads[0]))
        for optimizer in optimizers:
            optimizer.step()
    return scales


def test_two_optimizers_of_a_model_move_the_loss_scale_once_a_step():
    layers: Any = autoscale.autoscale(
        nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), policy=policy.dynamic_loss_scale(2.0, growth_interval=2)
    )
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in layers]
    assert scales_of_steps(layers, optimizers, 5) == [2, 2, 4, 4, 8]
    overflowing = scales_of_steps(layers, optimizers, 3, torch.inf)
    assert overflowing == [8, 4, 2] and autoscale.report(layers).skipped_steps == 6


@pytest.mark.parametrize("first_overflows", [True, False])
def test_a_step_is_clean_when_the_gradients_of_all_optimizers_are(first_overflows):
    layers: Any = autoscale.autoscale(nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]), policy="dynamic_loss_scale")
    optimizers = [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in layers]
    x = [torch.full((1, 1), torch.inf if overflows else 1e-6) for overflows in (first_overflows, not first_overflows)]
    for _ in range(2):
        (layers[0](x[0]) + layers[1](x[1])).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    (layers[0](x[0]) + layers[1](x[1])).sum().backward()
    assert scale(layers[0].weight.grad) == 2.0**-14


def test_a_copy_has_the_loss_scaler_when_its_original_is_gone():
    model: Any = autoscale.autoscale(nn.Linear(1, 1), policy="dynamic_loss_scale")
    twin = copy.deepcopy(model)
    del model
    gc.collect()
    optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
    scales_of_steps(twin, [optimizer], 2, torch.inf)
    assert autoscale.value(twin.weight).isfinite().all() and autoscale.report(twin).skipped_steps == 2
    scaler = scaler_of(twin)
    assert scaler is not None
    followed = weakref.ref(scaler)
    del twin, scaler
    gc.collect()
    assert followed() is None


def test_a_state_dict_has_the_loss_scale():
    def made() -> Any:
        return autoscale.autoscale(nn.Linear(1, 1), policy=policy.dynamic_loss_scale(2.0, growth_interval=3))

    model, again = made(), made()
    scales_of_steps(model, [torch.optim.SGD(model.parameters(), lr=0.0)], 5)
    state = model.state_dict()
    for strict in (True, False):
        again.load_state_dict(state, strict=strict)
        assert scales_of_steps(again, [torch.optim.SGD(again.parameters(), lr=0.0)], 2) == [4, 8]
    copied = copy.deepcopy(again)
    copied.load_state_dict(model.state_dict() | {"autoscale.loss_scale": torch.tensor([16, 0])})
    optimizer = torch.optim.SGD(again.parameters(), lr=0.0)
    assert scales_of_steps(again, [optimizer], 1) == [8], "a copy leaves the scale of the model in training alone"
    other: Any = autoscale.autoscale(nn.Linear(1, 1))
    other.load_state_dict(state)  # it has no use for one
    again.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="expected a loss scale's exponent and clean steps, got torch.float32"):
        again.load_state_dict(state | {"autoscale.loss_scale": torch.zeros(2)})


@pytest.mark.parametrize("make", [policy.dynamic_loss_scale, policy.automatic_loss_scale])
def test_a_loss_scale_stays_a_normal_number_however_many_steps_are_skipped(make):
    layer: Any = autoscale.autoscale(nn.Linear(1, 1, bias=False), policy=make(2.0**-125))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(4):
        layer(torch.full((1, 1), torch.inf)).sum().backward()
        optimizer.step()
    layer(torch.ones(1, 1)).sum().backward()
    assert scale(layer.weight.grad) == 2.0**126
    optimizer.step()
    assert autoscale.value(layer.weight).isfinite().all()


def test_an_automatic_loss_scale_follows_the_gradients():
    layer: Any = autoscale.autoscale(nn.Linear(64, 64, bias=False), policy=policy.automatic_loss_scale(1.0, growth_interval=1))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        (layer(torch.randn(8, 64)) * 1e-2).square().sum().backward()
        grad = layer.weight.grad
        optimizer.step()
    assert scale(grad) <= 2.0**-2


def test_published_exponents_are_rounded_down_and_forgotten():
    product = {name: ones(4, 192, of=name) @ ones(192, 4, of=name) for name in ("static", "scalify_static")}
    assert scale(product["static"]) == 16 and scale(product["scalify_static"]) == 8  # the root of 192 is 13.9
    assert torch.equal(*(autoscale.value(each) for each in product.values()))


def test_static_policies_measure_no_result():
    for name in ("static", "rms_grad", "scalify_static"):
        assert scale((ones(8, of=name) * 2.0**-20).tanh()) == 1
    assert scale((ones(8, of="autoscale") * 2.0**-20).tanh()) == 2.0**-20


def test_gradients_that_enter_a_product_are_measured():
    def last_gradient(name):
        layers: Any = autoscale.autoscale(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), policy=name)
        (layers(torch.ones(2, 4)).tanh() * 2.0**-9 / 512).sum().backward()
        return data(layers[0].weight.grad).float().abs().max()

    assert 2**-4 < last_gradient("rms_grad") < 2**4


def test_largest_elements_are_next_to_the_largest_number():
    result = ones(8, of="amax") * 3
    assert data(result).max() == 0.75 * 2**15
    assert scale(ones(8, of="amax_bias").tanh()) == 2.0**-15


def test_a_delayed_scale_is_that_of_the_last_step_and_saturates():
    layer: Any = autoscale.autoscale(nn.Linear(4, 4, bias=False), policy="delayed")
    outputs = []
    for size in (1.0, 1.0, 1.0, 4.0, 2.0**9):  # the first backward pass begins the first step that is known
        output = layer(torch.full((2, 4), size))
        outputs.append(output.detach())
        output.sum().backward()
        layer.zero_grad()
    assert scale(outputs[3]) == scale(outputs[2]) and scale(outputs[4]) == 4 * scale(outputs[3])
    assert data(outputs[4]).abs().max() == torch.finfo(torch.float16).max


def test_unit_scaling_is_another_model_of_unit_size():
    assert policy.unit_scaling.alters_model and not policy.autoscale.alters_model
    torch.manual_seed(0)
    layer: Any = nn.Linear(256, 512, bias=False)
    nn.init.normal_(layer.weight, std=7.0)
    layer = autoscale.autoscale(layer, policy="unit_scaling")
    x = autoscale.as_scaled(torch.randn(64, 256), policy="unit_scaling").requires_grad_()
    y = layer(x)
    y.backward(autoscale.as_scaled(torch.randn(64, 512), policy="unit_scaling"))
    for each in (y, layer.weight, layer.weight.grad, x.grad):
        assert scale(each) == 1 and 0.5 < data(each).float().square().mean().sqrt() < 2


def test_what_the_format_loses_is_counted():
    model: Any = autoscale.autoscale(nn.Linear(1, 4, bias=False), policy="none", counts_range=True)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [2.0**-16], [2.0**12], [0.0]]))
    autoscale.report(model, clear=True)
    model(torch.full((1, 1), 64.0))
    report = autoscale.report(model)
    assert (report.elements, report.overflowed, report.small) == (4, 1, 0)  # with the input
    model(torch.full((1, 1), 0.5))
    report = autoscale.report(model)
    assert (report.elements, report.overflowed, report.small) == (8, 1, 1)
    assert report.out_of_range_share == 1 / 4 and "12.5 % of elements overflowed" in str(report)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fast", "expected policy to be one of none, loss_scale"),
        ("none(3)", "expected policy none without a number"),
        ("loss_scale(3)", "loss_scale: expected a power of two, got 3"),
        (7, "expected policy to be one of"),
    ],
)
def test_policies_are_checked(name, message):
    with pytest.raises(ValueError, match=message):
        autoscale.autoscale(nn.Linear(1, 1), policy=name)


def test_a_policy_of_a_method_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="Policy: expected method to be one of autoscale, static"):
        policy.Policy("mine", "statics")
    with pytest.raises(ValueError, match="LossScale: expected growth to be none, steps or histogram, got 'step'"):
        policy.LossScale(growth="step")
    with pytest.raises(ValueError, match="LossScale: expected a growth_interval of at least 1, got 0"):
        policy.LossScale(growth="steps", growth_interval=0)


def test_a_form_of_gelu_that_there_is_not_is_refused():
    for x in (autoscale.as_scaled(torch.ones(4)), torch.ones(4)):
        with pytest.raises(RuntimeError, match="none or tanh|tanh or none"):
            F.gelu(x, approximate="sigmoid")


def test_the_table_has_a_row_for_each_method():
    rows = compare.compare(["fp32", "none", "unit_scaling", "fp8_current", "autoscale"], widths=[16], steps=3)
    text = compare_command.table(rows)
    assert len(text.splitlines()) == 7 and "| autoscale | yes | no |" in text and "| unit_scaling | yes | yes |" in text
    losses = {row.method.name: row.losses[16] for row in rows}
    assert losses["autoscale"] == approx(losses["fp32"], 1, torch.float16)
    ranges: dict[str, Any] = {row.method.name: row.out_of_range for row in rows}
    assert ranges["fp32"] is None and ranges["autoscale"] < ranges["none"] / 5


def test_the_command_names_the_methods_that_it_has(capsys):
    assert compare_command.main(["--methods", "slow", "--steps", "1"]) == 2
    assert "expected methods to be some of fp32, none" in capsys.readouterr().err
