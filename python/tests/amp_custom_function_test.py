"""custom_fwd and custom_bwd of plimsoll.amp, which stand in for torch.amp's."""

from typing import Any

import pytest
import torch
from plimsoll import amp

HALF = torch.float16


def product(module, **options):
    """x w^T as a torch.autograd.Function, with the dtypes that its passes see."""

    class Product(torch.autograd.Function):
        seen: dict[Any, Any] = {}

        @staticmethod
        @module.custom_fwd(device_type="cpu", **options)
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            output = x.mm(weight.t())
            Product.seen["forward"] = (output.dtype, torch.is_autocast_enabled("cpu"))
            return output

        @staticmethod
        @module.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            grad_x, grad_weight = grad.mm(weight), grad.t().mm(x)
            wide = torch.exp(torch.ones(1, dtype=HALF)).dtype
            Product.seen["backward"] = (grad_x.dtype, torch.is_autocast_enabled("cpu"), wide)
            return grad_x, grad_weight

    return Product


def run(function, enabled=True, dtype=torch.float32):
    x = torch.ones(2, 3, dtype=dtype, requires_grad=True)
    weight = torch.ones(4, 3, dtype=dtype, requires_grad=True)
    with amp.autocast("cpu", HALF, enabled=enabled):
        output = function.apply(x, weight)
    output.sum().backward()
    return function.seen


def test_backward_runs_under_the_autocast_of_forward():
    assert run(product(amp)) == {"forward": (HALF, True), "backward": (HALF, True, torch.float32)}
    seen = run(product(amp), enabled=False)
    assert (seen["forward"], seen["backward"][:2]) == ((torch.float32, False), (torch.float32, False))


def test_cast_inputs_switches_autocast_off_inside():
    function = product(amp, cast_inputs=torch.float32)
    seen = run(function, dtype=HALF)
    assert (seen["forward"], seen["backward"][:2]) == ((torch.float32, False), (torch.float32, False))
    assert run(function, enabled=False, dtype=HALF)["forward"] == (HALF, False)


@pytest.mark.parametrize("options", [{}, {"cast_inputs": torch.float32}])
def test_results_are_torchs(options):
    gradients = []
    for module in (amp, torch.amp):
        torch.manual_seed(1)
        x, weight = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        with amp.autocast("cpu", HALF):
            output = product(module, **options).apply(x, weight)
        output.sum().backward()
        gradients.append((output, x.grad, weight.grad))
    assert all(torch.equal(mine, other) for mine, other in zip(*gradients, strict=True))


def test_a_weight_keeps_its_gradient_outside_the_function():
    x, weight = torch.ones(2, 3), torch.ones(4, 3, requires_grad=True)
    with amp.autocast("cpu", HALF):
        product(amp).apply(x, weight)
        loss = torch.nn.functional.linear(x, weight).sum()
    loss.backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((4, 3), 2.0))


def test_bad_arguments_are_torchs_errors():
    decorators: list[Any] = [amp.custom_fwd, amp.custom_bwd]
    for decorator in decorators:
        with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
            decorator(device_type=0)(lambda ctx: None)
        with pytest.raises(TypeError, match="device_type"):
            decorator(lambda ctx: None)
