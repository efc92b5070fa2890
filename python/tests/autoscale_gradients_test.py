"""Functions and gradients that run in one pass over 16-bit data: those of FP64 on the values, for any exponents."""

from typing import Any, cast

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F

ROUNDING, SMALLEST = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}, 2.0**-24
FP32_ERROR = 2.0**-17  # where terms cancel, of the largest element
EXPONENTS = [(0, 0), (-3, 9), (2, -30)]  # of the operand, of the gradient of the result
ROWS, COLUMNS = 48, 96  # more than one block of the kernel

FUNCTIONS = {
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "a number more": lambda x: 1.0 + x,
    "a number times": lambda x: 0.044715 * x,
}


class Operand:
    """Random data under an exponent, as a scaled tensor and as its value in FP64."""

    def __init__(self, seed: int, exponent: int, dtype: torch.dtype, *shape: int):
        data = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        self.scaled = autoscale.scaled_array(data, 2.0**exponent, dtype=dtype).requires_grad_()
        self.exact = (data.double() * 2.0**exponent).requires_grad_()


def assert_close(scaled: torch.Tensor | None, exact: torch.Tensor | None, dtype: torch.dtype, roundings: float, terms=None):
    """terms: the sizes of what the result was made of by numbers that were rounded."""
    assert scaled is not None and exact is not None
    scaled, exact = scaled.detach(), exact.detach()
    _, scale = autoscale.get_data_scale(scaled)
    sizes = exact.abs() if terms is None else exact.abs() + terms
    allowed = roundings * (ROUNDING[dtype] * sizes + SMALLEST * scale) + FP32_ERROR * exact.abs().max()
    assert ((autoscale.value(scaled).double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_and_its_gradient_are_those_of_the_value(name, dtype):
    for i, j in EXPONENTS:
        x, upstream = Operand(1, i, dtype, ROWS, COLUMNS), Operand(2, j, dtype, ROWS, COLUMNS)
        y, expected = FUNCTIONS[name](x.scaled), FUNCTIONS[name](x.exact)
        assert_close(y, expected, dtype, 1)
        y.backward(upstream.scaled.detach())
        expected.backward(upstream.exact.detach())
        # Some gradients are torch's compositions, some are computed from a result that was rounded.
        assert_close(x.scaled.grad, x.exact.grad, dtype, 4, terms=upstream.exact.detach().abs())


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("affine", [False, True])
def test_the_gradients_of_a_layer_norm_are_those_of_the_value(affine, dtype):
    for i, j in EXPONENTS:
        operands = [Operand(3, i, dtype, ROWS, COLUMNS)]
        if affine:
            operands += [Operand(5, -6, dtype, COLUMNS), Operand(6, 3, dtype, COLUMNS)]
        upstream = Operand(4, j, dtype, ROWS, COLUMNS)
        y = F.layer_norm(operands[0].scaled, (COLUMNS,), *cast(Any, [x.scaled for x in operands[1:]]))
        expected = F.layer_norm(operands[0].exact, (COLUMNS,), *cast(Any, [x.exact for x in operands[1:]]))
        assert_close(y, expected, dtype, 1)
        y.backward(upstream.scaled.detach())
        expected.backward(upstream.exact.detach())
        for x in operands:
            assert_close(x.scaled.grad, x.exact.grad, dtype, 1)
