"""Products of autoscale in FP8: codes at the scale that the operands carry, the same forward and backward."""

import math
from typing import Any

import autoscale_models as models
import plimsoll.autoscale as autoscale
import pytest
import torch
from rounded_results import RoundedResults
from rounding import gamma, rounds_alike, within
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def coded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Value of x as codes: at the least power of two under which its largest element fits. x: of a scaled tensor."""
    x = autoscale.value(x)
    step = 2.0 ** math.ceil(math.log2(x.abs().max()) - math.log2(torch.finfo(dtype).max))
    return (x / step).to(dtype).double() * step


def close(x: Any, exact: torch.Tensor) -> bool:
    """Within the GEMM's own error and one rounding to FP16."""
    bound = gamma(1, torch.float16) * exact.abs() + gamma(48) * exact.abs().max()  # at most 48 terms
    return within(autoscale.value(x), exact, bound)


@pytest.mark.parametrize(("name", "values", "gradients"), [("e4m3", E4M3, E4M3), ("e5m2", E5M2, E5M2), ("hybrid", E4M3, E5M2)])
def test_products_read_codes_and_all_three_the_same(name, values, gradients):
    torch.manual_seed(0)
    layer: Any = autoscale.autoscale(nn.Linear(48, 32, bias=False), matmul_format=name)
    x = torch.randn(20, 48, requires_grad=True)
    grad = torch.randn(20, 32) * 1e-6
    y = layer(x)
    w, entered = coded(layer.weight, values), coded(autoscale.as_scaled(x), values)
    assert close(y, entered @ w.t())
    (y * grad).sum().backward()
    g = coded(autoscale.as_scaled(grad), gradients)
    assert close(layer.weight.grad, g.t() @ entered) and close(x.grad, g @ w)
    calls = {row.op: row.codes for row in autoscale.report(layer).ops}
    assert calls["aten::mm"] == 3


def test_codes_are_made_anew_when_the_memory_is_written():
    layer: Any = autoscale.autoscale(nn.Linear(8, 8, bias=False), matmul_format="e4m3")
    x = torch.eye(8)
    before = autoscale.value(layer(x)).clone()
    with torch.no_grad():
        layer.weight.mul_(2)
        assert torch.equal(autoscale.value(layer(x)), 2 * before)
        layer.weight[3].zero_()
        assert not autoscale.value(layer(x))[:, 3].any() and autoscale.value(layer(x))[:, 2].any()
        layer.weight.zero_()
        assert not autoscale.value(layer(x)).any()


def test_what_is_not_finite_stays_so_in_codes():
    layer: Any = autoscale.autoscale(nn.Linear(4, 4, bias=False), matmul_format="e4m3")
    x = torch.ones(3, 4)
    x[1, 2] = float("nan")
    x[2, 0] = float("inf")
    y = autoscale.value(layer(x))
    assert y[0].isfinite().all() and not y[1:].isfinite().any()


def test_any_size_of_operand_has_codes():
    torch.manual_seed(1)
    layer: Any = autoscale.autoscale(nn.Linear(64, 16, bias=False), matmul_format="e4m3")
    x = torch.randn(32, 64)
    expected = autoscale.value(layer(x))
    for size in (2.0**-60, 2.0**60):
        assert torch.equal(autoscale.value(layer(x * size)), expected * size)


def test_a_gpt_trains_in_fp8_without_loss_scaling_as_in_fp32():
    reference, _ = models.train("gpt2", 30, prepare=lambda model: model)
    # E4M3 has 4 bits of significand, and FP16, in which everything else is, has 11.
    rounded, _ = models.train("gpt2", 30, prepare=lambda model: model, scope=lambda: RoundedResults(11, operand_bits=4))
    losses, model = models.train("gpt2", 30, prepare=lambda model: autoscale.autoscale(model, matmul_format="hybrid"))
    assert rounds_alike(losses, rounded, reference) and losses[0] - losses[-1] > 5 * (losses - reference).abs().max()
    assert all(autoscale.get_data_scale(parameter)[0].dtype == torch.float16 for parameter in model.parameters())
    calls = {row.op: row for row in autoscale.report(model).ops}
    assert calls["aten::addmm"].codes > 0 and calls["aten::addmm"].storage == 0


def test_the_format_is_checked():
    with pytest.raises(
        ValueError, match="expected matmul_format to be one of None, e4m3, e5m2, hybrid, nvfp4, mxfp4, got 'int8'"
    ):
        autoscale.autoscale(nn.Linear(1, 1), matmul_format="int8")
