"""The rules of plimsoll.autoscale: exponents of the operands change the exponent of the result, and nothing else."""

import os
from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from rounding import gamma, within

# FP16's half distance of two numbers next to 1, and the distance below its smallest normal one.
ROUNDING, SMALLEST = 2.0**-11, 2.0**-24
EXPONENTS = [(-40, 40), (40, -40), (-40, -40), (0, 7), (-13, 3), (5, 5), (31, -8)]


def pair(seed: int, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).half() for shape in shapes]


def scaled(data, exponent):
    return autoscale.scaled_array(data, 2.0**exponent)


def exact(data, exponent):
    return data.double() * 2.0**exponent


HOMOGENEOUS: dict[str, Any] = {
    "mul": (torch.mul, (1, 1)),
    "div": (torch.div, (1, -1)),
    "mm": (lambda a, b: a @ b.t(), (1, 1)),
    "neg": (lambda a, b: -a, (1, 0)),
    "abs": (lambda a, b: a.abs(), (1, 0)),
    "relu": (lambda a, b: F.relu(a), (1, 0)),
    "sum": (lambda a, b: a.sum(0), (1, 0)),
    "mean": (lambda a, b: a.mean(1), (1, 0)),
    "amax": (lambda a, b: a.amax(1), (1, 0)),
    "index": (lambda a, b: a[torch.tensor([2, 0])], (1, 0)),
    "view": (lambda a, b: a.t().reshape(-1)[3:11], (1, 0)),
    "sqrt of a product": (lambda a, b: (a * a * b * b).sqrt(), (1, 1)),
    "number": (lambda a, b: a * 3.0e9 / 7, (1, 0)),
    "cumsum": (lambda a, b: a.cumsum(1), (1, 0)),
    "norm": (lambda a, b: torch.linalg.vector_norm(a, dim=1), (1, 0)),
    "var": (lambda a, b: a.var(1), (2, 0)),
    "threshold_backward": (lambda a, b: torch.ops.aten.threshold_backward(a, b, 0), (1, 0)),
}


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_a_homogeneous_rule_gives_the_same_bits_for_any_exponents(name):
    function, (degree_a, degree_b) = HOMOGENEOUS[name]
    a, b = pair(1, (5, 8), (5, 8))
    reference = autoscale.value(function(scaled(a, 0), scaled(b, 0))).double()
    for i, j in EXPONENTS:
        result = autoscale.value(function(scaled(a, i), scaled(b, j))).double()
        assert torch.equal(result, reference * 2.0 ** (degree_a * i + degree_b * j)), (i, j)


ADDITIVE: dict[str, Any] = {
    "add": (torch.add, 2),
    "sub": (torch.sub, 2),
    "add with a factor": (lambda a, b: torch.add(a, b, alpha=-0.75), 2),
    "maximum": (torch.maximum, 1),
    "where": (lambda a, b: torch.where(torch.arange(8) % 2 == 0, a, b), 1),
    "cat": (lambda a, b: torch.cat([a, b], 1), 1),
    "stack": (lambda a, b: torch.stack([a, b]), 1),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.25), 2),
    "add in place": (lambda a, b: a.clone().add_(b), 2),
    "rsub": (lambda a, b: torch.rsub(a, b), 2),
}


@pytest.mark.parametrize("name", ADDITIVE)
def test_an_additive_rule_rounds_once_and_shifts_exactly(name):
    function, roundings = ADDITIVE[name]
    a, b = pair(2, (5, 8), (5, 8))
    for i, j in EXPONENTS:
        result = function(scaled(a, i), scaled(b, j))
        expected = function(exact(a, i), exact(b, j))
        # An operand at the smaller exponent is shifted down, where numbers below SMALLEST vanish.
        _, scale = autoscale.get_data_scale(result)
        bound = roundings * ROUNDING * expected.abs() + 2 * SMALLEST * max(scale, 2.0 ** max(i, j))
        assert ((autoscale.value(result).double() - expected).abs() <= bound).all(), (i, j)


# Arguments on which the size of a result depends, beside the tensor.
ARGUMENTS: dict[str, Any] = {
    "count": lambda a: torch.linalg.vector_norm(a, ord=0),
    "count of a row": lambda a: torch.norm(a, p=0, dim=1),
    "sums of windows": lambda a: F.avg_pool2d(a[None, None], 32, divisor_override=1),
    "rsub": lambda a: torch.rsub(a, 1, alpha=1e6),
    "rsub of a small one": lambda a: torch.rsub(a, 1, alpha=1e-6),
    "add.Scalar": lambda a: torch.ops.aten.add.Scalar(a, 1, 1e6),
    "add.Scalar of a small one": lambda a: torch.ops.aten.add.Scalar(a, 3e4, 1e-9),
    "sub.Scalar": lambda a: torch.ops.aten.sub.Scalar(a, 1, 1e6),
    "add.Scalar in place": lambda a: torch.ops.aten.add_.Scalar(a, 1, 1e6),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("exponent", [-10, 0, 10])
@pytest.mark.parametrize("policy", ["autoscale", "amax"])  # the second one has no passes of the library
def test_arguments_that_change_the_size_of_a_result_count(name, exponent, policy):
    data = torch.full((64, 64), 2.0**7)  # whose sums over windows FP16 does not hold
    data[0, 0] = 0
    x = scaled(data.half(), exponent) if policy == "autoscale" else autoscale.as_scaled(data * 2.0**exponent, policy=policy)
    expected = ARGUMENTS[name](data.double() * 2.0**exponent)
    result = autoscale.value(ARGUMENTS[name](x)).double()
    assert within(result, expected, gamma(3, torch.float16) * expected.abs() + SMALLEST * expected.abs().max())


# With the roundings of those that torch composes of several.
NONLINEAR: dict[str, Any] = {
    "exp": (torch.exp, 1),
    "tanh": (torch.tanh, 1),
    "sigmoid": (torch.sigmoid, 1),
    "gelu": (F.gelu, 1),
    "silu": (F.silu, 1),
    "softmax": (lambda x: F.softmax(x, -1), 1),
    "log_softmax": (lambda x: F.log_softmax(x, -1), 1),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), 1),
    "rms_norm": (lambda x: F.rms_norm(x, (8,), eps=1e-6), 6),
    "log": (lambda x: x.abs().log(), 1),
    "pow": (lambda x: x.abs() ** 1.5, 1),
}


@pytest.mark.parametrize("name", NONLINEAR)
def test_a_nonlinear_rule_is_fp32_on_the_value_and_one_rounding(name):
    function, roundings = NONLINEAR[name]
    (x,) = pair(3, (5, 8))
    for i in (-12, -3, 0, 4):
        result = function(scaled(x, i))
        expected = function(exact(x, i).float()).double()
        _, scale = autoscale.get_data_scale(result)
        bound = roundings * (ROUNDING * expected.abs() + SMALLEST * scale)
        assert ((autoscale.value(result).double() - expected).abs() <= bound).all(), i


def test_comparisons_see_values():
    a, b = pair(4, (40,), (40,))
    for i, j in EXPONENTS:
        x, y = scaled(a, i), scaled(b, j)
        assert torch.equal(x < y, exact(a, i) < exact(b, j))
        assert torch.equal(x >= 0.5, exact(a, i) >= 0.5)
        assert x.argmax() == a.argmax()


def test_a_product_that_fp16_does_not_hold_is_held():
    a, b = pair(5, (16, 1024), (1024, 8))
    exact_product = (a.double() * 128) @ (b.double() * 128)
    plain = (a * 128) @ (b * 128)
    assert plain.isfinite().double().mean() < 0.25
    product = autoscale.value(autoscale.as_scaled(a.float() * 128) @ autoscale.as_scaled(b.float() * 128)).double()
    assert product.isfinite().all()
    magnitude = (a.double() * 128).abs() @ (b.double() * 128).abs()
    assert within(product, exact_product, gamma(1, torch.float16) * exact_product.abs() + gamma(1024) * magnitude)


def rms(x: torch.Tensor) -> float:
    return autoscale.get_data_scale(x)[0].float().square().mean().sqrt().item()


def test_scales_do_not_drift():
    generator = torch.Generator().manual_seed(6)
    x = autoscale.as_scaled(torch.randn(32, 512, generator=generator))
    for _ in range(20):
        x = x @ autoscale.as_scaled(torch.randn(512, 512, generator=generator))
        assert 0.25 <= rms(x) <= 4
    total = autoscale.as_scaled(torch.randn(64, 64, generator=generator))
    for _ in range(1000):
        total = total + autoscale.as_scaled(torch.randn(64, 64, generator=generator))
        assert 0.25 <= rms(total) <= 4
    stream = autoscale.as_scaled(torch.randn(16, 64, generator=generator))
    for _ in range(100):
        weight = autoscale.as_scaled(torch.randn(64, 64, generator=generator) / 8)
        stream = stream + F.layer_norm(stream, (64,)) @ weight
        assert 0.25 <= rms(stream) <= 4


RANDOM_OPS = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x * 37.0,
    lambda x, y: x / 1000,
    lambda x, y: torch.maximum(x, y),
    lambda x, y: x.abs(),
    lambda x, y: F.gelu(x),
    lambda x, y: F.softmax(x, -1),
    lambda x, y: x @ y,
    lambda x, y: x.tanh(),
    lambda x, y: x.cumsum(0),
    lambda x, y: x.square(),
    lambda x, y: F.layer_norm(x, (6,)),
    lambda x, y: torch.where(y > 0, x, y),
    lambda x, y: x.t().contiguous(),
]


def test_random_sequences_stay_finite_where_fp32_does():
    generator = torch.Generator().manual_seed(7)
    count = int(os.environ.get("PLIMSOLL_SEQUENCES", 1000))  # 10,000 take minutes
    draws = torch.randint(len(RANDOM_OPS), (count, 10), generator=generator).tolist()
    for sequence in draws:
        x, y = (torch.randn(6, 6, generator=generator) * 10 for _ in range(2))
        scaled_x, scaled_y = autoscale.as_scaled(x), autoscale.as_scaled(y)
        for index in sequence:
            x, scaled_x = RANDOM_OPS[index](x, y), RANDOM_OPS[index](scaled_x, scaled_y)
            if not (x.isfinite().all() and x.abs().amax() < 2.0**100):
                break
            assert autoscale.value(scaled_x).isfinite().all(), sequence


def test_every_rule_names_an_operator_of_torch():
    ops, classes, bounds = torch.ops.plimsoll.autoscale_rules()
    known = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    assert set(ops) - known == set()
    assert len(set(ops)) == len(ops) > 150
    assert all(classes) and all(bounds)
