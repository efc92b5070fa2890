"""rms_norm under plimsoll.accelerate(): torch composes it on the CPU, so its gradients, tangents and transforms are looked at here."""

import plimsoll
import pytest
import torch
from rounding import rounds_alike
from torch.autograd import forward_ad

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WIDTH = 192


@pytest.fixture(autouse=True)
def ours():
    with plimsoll.accelerated():
        plimsoll.reset_acceleration_report()
        torch.rms_norm(torch.ones(512, WIDTH), (WIDTH,))
        if not outcomes().get("replaced"):
            pytest.skip("no rule for this processor")
        plimsoll.reset_acceleration_report()
        yield


def outcomes():
    return {reason: calls for reason, calls in plimsoll.acceleration_report().get("rms_norm", {}).items() if calls}


def operands(dtype=FP32, weight_dtype=None):
    torch.manual_seed(0)
    x = torch.randn(4, 96, WIDTH).to(dtype).requires_grad_()
    return x, torch.rand(WIDTH).to(weight_dtype or dtype).requires_grad_()


def norm(x, weight):
    return torch.nn.functional.rms_norm(x, (WIDTH,), weight)


def theirs(function, *args):
    plimsoll.accelerate(False)
    try:
        return function(*args)
    finally:
        plimsoll.accelerate()


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_only_wanted_gradients_are_made(dtype, wanted):
    def gradients(dtype):
        x, weight = (each.detach().to(dtype).requires_grad_(flag) for each, flag in zip(operands(), wanted, strict=True))
        y = norm(x, weight)
        y.double().square().sum().backward()
        return [y.detach()] + [each.grad for each in (x, weight) if each.grad is not None]

    exact, reference = theirs(gradients, torch.float64), theirs(gradients, dtype)
    mine = gradients(dtype)
    assert outcomes() == {"replaced" if wanted[0] else "shape": 1} and len(mine) == 1 + sum(wanted)
    assert all(rounds_alike(*each) for each in zip(mine, reference, exact, strict=True))


def test_x_without_gradients_may_be_written_afterwards_and_come_from_inference_mode():
    x, weight = operands()
    with torch.inference_mode():
        frozen = x.detach().clone()

    def gradient(x):
        weight.grad = None
        y = norm(x, weight)
        if not x.is_inference():
            x += y.detach()
        y.square().sum().backward()
        return weight.grad

    for given in (frozen, x.detach()):
        expected = theirs(gradient, given.clone())
        assert torch.equal(gradient(given if given.is_inference() else given.clone()), expected)
    assert outcomes() == {"shape": 2}


def test_a_weight_in_fp32_leaves_the_result_in_sixteen_bits():
    x, weight = operands(BF16, FP32)
    y = norm(x, weight)
    y.sum().backward()
    assert outcomes() == {"replaced": 1}
    assert (y.dtype, x.grad.dtype, weight.grad.dtype) == (BF16, BF16, FP32)


def test_gradients_of_gradients_are_torchs():
    def second(dtype):
        x, weight = (each.detach().to(dtype).requires_grad_() for each in operands())
        first = torch.autograd.grad(norm(x, weight).square().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(torch.stack([each.square().sum() for each in first]).sum(), (x, weight))

    exact, reference = theirs(second, torch.float64), theirs(second, FP32)
    mine = second(FP32)
    assert outcomes() == {"replaced": 1}
    assert all(rounds_alike(*each) for each in zip(mine, reference, exact, strict=True))


def test_a_pass_that_began_accelerated_ends_without_it():
    x, weight = operands()
    y = norm(x, weight)
    plimsoll.accelerate(False)
    y.sum().backward()
    mine = x.grad.clone()
    x.grad = None
    norm(x, weight).sum().backward()
    exact = torch.autograd.grad(norm(x.double(), weight.double()).sum(), x)[0]
    assert rounds_alike(mine, x.grad, exact)


def test_an_operand_that_changes_before_backward_is_an_error():
    x, weight = operands()
    y = norm(x, weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_gradient_and_inference_mode():
    x, weight = operands()
    y = norm(x, weight).detach()
    with torch.no_grad():
        assert torch.equal(norm(x, weight), y)
    with torch.inference_mode():
        assert torch.equal(norm(x.detach().clone(), weight), y)
    assert outcomes() == {"replaced": 3}


def test_transforms_tangents_and_tracing_go_where_they_went():
    x, weight = (each.detach() for each in operands())

    def loss(x, weight):
        return norm(x, weight).square().sum()

    def tangent():
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(norm(forward_ad.make_dual(x, torch.ones_like(x)), weight)).tangent

    def closed_over():
        return torch.func.grad(lambda scale: (norm(x, weight) * scale).sum())(torch.tensor(2.0))

    calls = {
        "grad": lambda: torch.func.grad(loss, argnums=(0, 1))(x, weight),
        "grad of nothing normalised": closed_over,
        "vmap": lambda: torch.func.vmap(lambda row: norm(row, weight))(x),
        "jvp": lambda: torch.func.jvp(lambda x: norm(x, weight), (x,), (torch.ones_like(x),)),
        "tangent": tangent,
        "compile": lambda: torch.compile(loss)(x, weight),
    }
    for name, call in calls.items():
        expected = theirs(call)
        plimsoll.reset_acceleration_report()
        result = call()
        assert "replaced" not in outcomes(), name
        torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=name)


def test_what_is_not_ours_goes_where_it_went():
    x, weight = (each.detach() for each in operands())
    cases = {
        "dtype": (lambda: norm(x.double(), weight.double()), lambda: norm(x, weight.bfloat16())),
        "shape": (lambda: torch.rms_norm(x, (96, WIDTH)),),
        "strides": (lambda: norm(x.transpose(0, 1), weight),),
        "size": (lambda: norm(x[0, :2], weight),),
    }
    for reason, calls in cases.items():
        for call in calls:
            expected = theirs(call)
            plimsoll.reset_acceleration_report()
            assert torch.equal(call(), expected), reason
            assert outcomes() == {reason: 1}


def test_mistakes_have_torchs_own_errors():
    x, weight = (each.detach() for each in operands())
    for call in (lambda: norm(x, weight[:3]), lambda: torch.rms_norm(x, (3,)), lambda: torch.rms_norm(x, ())):
        with pytest.raises(RuntimeError) as reference:
            theirs(call)
        with pytest.raises(RuntimeError) as mine:
            call()
        assert str(mine.value) == str(reference.value)
