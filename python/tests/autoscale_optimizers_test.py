"""Torch's optimizers on a parameter's data and remainder, against the same in FP32."""

import plimsoll.autoscale as autoscale
import pytest
import torch

# Larger than a block of the pass, and no multiple of it.
SHAPE = (37, 700)
# Data and remainder have 22 bits, and the pass rounds as FP32 does, though in another order.
RELATIVE = 2.0**-20

OPTIMIZERS = {
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1, fused=True),
    "AdamW, maximize": lambda p, lr: torch.optim.AdamW(p, lr=lr, maximize=True, fused=True),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True),
    "Adam with decay": lambda p, lr: torch.optim.Adam(p, lr=lr, weight_decay=0.1, fused=True),
    "AdamW, amsgrad": lambda p, lr: torch.optim.AdamW(p, lr=lr, amsgrad=True, fused=True),
    "AdamW, a loop": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1, foreach=False),
    "AdamW, foreach": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1, foreach=True),
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr, weight_decay=0.1, fused=True),
    "SGD, momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, dampening=0.5, fused=True),
    "SGD, nesterov": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.1, nesterov=True, fused=True),
    "SGD, maximize": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, maximize=True, fused=True),
    "SGD, a loop": lambda p, lr: torch.optim.SGD(p, lr=lr, foreach=False),
    "SGD, foreach": lambda p, lr: torch.optim.SGD(p, lr=lr, foreach=True),
}


def gradients(steps: int):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SHAPE, generator=generator).half() for _ in range(steps)]


def trained(optimizer: str, start: torch.Tensor, lr: float, exponent: int, steps: int = 4, scaled: bool = True):
    """The parameter after steps with gradients of 2^exponent."""
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(start.clone())
    if scaled:
        autoscale.autoscale(layer)
    stepper = OPTIMIZERS[optimizer](layer.parameters(), lr)
    for gradient in gradients(steps):
        plain = gradient.float() * 2.0**exponent
        layer.weight.grad = autoscale.scaled_array(gradient, 2.0**exponent) if scaled else plain
        stepper.step()
    return layer.weight.detach()


def kept(parameter: torch.Tensor) -> torch.Tensor:
    """The value with what rounding the data cut off."""
    data, scale = autoscale.get_data_scale(parameter)
    return (data.double() + torch.ops.plimsoll.autoscale_kept_remainder(parameter).double() * 2.0**-11) * scale


def assert_same(got: torch.Tensor, expected: torch.Tensor, steps: int):
    bound = steps * RELATIVE * expected.abs().amax()
    assert (kept(got) - expected).abs().amax() <= bound


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("exponent", [-30, 0, 12])
def test_steps_are_those_of_fp32(optimizer, exponent):
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)).half().float()
    expected = trained(optimizer, start, 1e-2, exponent, scaled=False)
    assert_same(trained(optimizer, start, 1e-2, exponent), expected, 4)


@pytest.mark.parametrize("optimizer", ["AdamW", "AdamW, a loop", "SGD, nesterov", "SGD, a loop"])
def test_a_step_far_beyond_the_exponent_of_the_data_is_held(optimizer):
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)).half().float() * 2.0**-30
    expected = trained(optimizer, start, 1.0, 0, scaled=False)
    result = trained(optimizer, start, 1.0, 0)
    assert_same(result, expected, 4)
    data, scale = autoscale.get_data_scale(result)
    assert data.isfinite().all() and 2.0**-2 <= data.float().square().mean().sqrt() <= 4 and scale > 2.0**-5


def test_what_is_not_in_one_memory_is_stepped_all_the_same():
    whole = torch.nn.Parameter(torch.randn(8, 12, generator=torch.Generator().manual_seed(4)))
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(whole.detach().clone())
    autoscale.autoscale(layer)
    for parameter in (whole, layer.weight):
        parameter.grad = autoscale.as_scaled(torch.ones(12, 8)).t() if parameter is layer.weight else torch.ones(8, 12)
        torch.optim.SGD([parameter], lr=0.25, fused=True).step()
        torch.optim.SGD([parameter], lr=0.25, foreach=False).step()
    assert_same(layer.weight.detach(), whole.detach(), 2**10)  # it began rounded to FP16


def test_a_nan_in_a_gradient_reaches_its_weight_alone():
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.ones(SHAPE))
    autoscale.autoscale(layer)
    gradient = torch.ones(SHAPE).half()
    gradient[3, 5] = torch.nan
    layer.weight.grad = autoscale.scaled_array(gradient, 1.0)
    torch.optim.AdamW(layer.parameters(), lr=1e-2, weight_decay=0, fused=True).step()
    value = kept(layer.weight)
    assert value.isnan().sum() == 1 and value[3, 5].isnan()
    assert torch.allclose(value[0], torch.tensor(0.99, dtype=torch.float64), rtol=RELATIVE, atol=0)


def test_state_is_fp32_at_its_value():
    layer = torch.nn.Linear(4, 4)
    autoscale.autoscale(layer)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    for name in ("exp_avg", "exp_avg_sq"):
        data, scale = autoscale.get_data_scale(optimizer.state[layer.weight][name])
        assert data.dtype == torch.float32 and scale == 1
