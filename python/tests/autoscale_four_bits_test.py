"""Products of autoscale in four bits: the codes of the recipes of these names, of the data, whatever the exponents are."""

import math
from typing import Any

import autoscale_models as models
import four_bit_oracle
import oracle
import plimsoll
import plimsoll.autoscale as autoscale
import pytest
import torch
from rounded_results import RoundedResults
from rounding import gamma, rounds_alike, within
from torch import nn

FORMATS = ["nvfp4", "mxfp4"]


def expect_product(ours: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """a [rows, sum] and b [columns, sum]: values of codes, in double. Their product is within the GEMM's error, which is that of
    some FP32 chain, and of one rounding to FP16."""
    exact, bound = oracle.product(a, b.T, a.shape[1])
    assert within(autoscale.value(ours), exact, bound + gamma(1, torch.float16) * (exact.abs() + bound))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(20, 48, 32), (5, 33, 17), (40, 70, 9)])
@pytest.mark.parametrize("size", [1, 2.0**-40])
def test_all_three_products_of_a_layer_are_those_of_the_recipe(name, tokens, inputs, outputs, size):
    torch.manual_seed(0)
    layer: Any = autoscale.autoscale(nn.Linear(inputs, outputs, bias=False), matmul_format=name)
    x = torch.randn(tokens, inputs) * size
    x.requires_grad_()
    grad = torch.randn(tokens, outputs) * 1e-6
    y = layer(x)
    torch.manual_seed(1)
    (y * grad).sum().backward()
    torch.manual_seed(1)
    # In the order in which torch's derivative of mm computes its gradients.
    seeds = dict(fprop=None, wgrad=four_bit_oracle.drawn_seed(), dgrad=four_bit_oracle.drawn_seed())
    values = dict(input=autoscale.value(autoscale.as_scaled(x)).detach(), weight=autoscale.value(layer.weight).detach())
    values["grad_output"] = autoscale.value(autoscale.as_scaled(grad))

    def operand(role, product):
        return four_bit_oracle.operand(four_bit_oracle.RECIPES[name], values[role], role, product, seeds[product])

    expect_product(y, operand("input", "fprop"), operand("weight", "fprop"))
    expect_product(x.grad, operand("grad_output", "dgrad"), operand("weight", "dgrad"))
    expect_product(layer.weight.grad, operand("grad_output", "wgrad"), operand("input", "wgrad"))
    assert {row.op: row.codes for row in autoscale.report(layer).ops}["aten::mm"] == 3


@pytest.mark.parametrize("name", FORMATS)
def test_any_size_of_operand_has_the_same_codes(name):
    torch.manual_seed(2)
    layer: Any = autoscale.autoscale(nn.Linear(64, 16, bias=False), matmul_format=name)
    x = torch.randn(32, 64)
    expected = autoscale.value(layer(x))
    for size in (2.0**-60, 2.0**60):
        assert torch.equal(autoscale.value(layer(x * size)), expected * size)


@pytest.mark.parametrize("name", FORMATS)
def test_forward_draws_no_random_number_and_backward_the_same_ones_for_a_seed(name):
    torch.manual_seed(3)
    layer: Any = autoscale.autoscale(nn.Linear(40, 24), matmul_format=name)
    x = torch.randn(50, 40)
    before = torch.get_rng_state()
    layer(x)
    assert torch.equal(torch.get_rng_state(), before)

    def gradient(seed):
        layer.weight.grad = None
        y = layer(x)
        torch.manual_seed(seed)
        (y * y).sum().backward()
        return autoscale.value(layer.weight.grad).clone()

    first = gradient(4)
    assert torch.equal(gradient(4), first)
    assert torch.equal(gradient(5), first) == (name == "mxfp4")


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_finite_is_read_as_data(name):
    torch.manual_seed(6)
    layer: Any = autoscale.autoscale(nn.Linear(4, 4, bias=False), matmul_format=name)
    x = torch.ones(3, 4)
    x[1, 2], x[2, 0] = math.nan, math.inf
    x.requires_grad_()
    y = layer(x)
    assert autoscale.value(y)[0].isfinite().all() and not autoscale.value(y)[1:].isfinite().any()
    y.sum().backward()
    assert x.grad is not None
    weight_grad = autoscale.value(layer.weight.grad)
    assert not weight_grad[:, [0, 2]].isfinite().any() and weight_grad[:, [1, 3]].isfinite().all()
    assert autoscale.value(x.grad).isfinite().all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("policy", ["none", "loss_scale(1024)", "rms_grad", "delayed", "unit_scaling"])
def test_every_policy_and_dtype_runs_on_codes(name, dtype, policy):
    torch.manual_seed(7)
    model: Any = autoscale.autoscale(
        nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 5)), matmul_format=name, dtype=dtype, policy=policy
    )
    for _ in range(2):
        loss = model(torch.randn(9, 20)).square().mean()
        loss.backward()
    assert math.isfinite(loss.item())
    assert all(autoscale.value(parameter.grad).isfinite().all() for parameter in model.parameters())
    calls = {row.op: row for row in autoscale.report(model).ops}
    assert calls["aten::addmm"].codes == 4 and calls["aten::mm"].codes == 6


@pytest.mark.parametrize(("name", "blocks", "scale"), [("nvfp4", {"1x16", "16x16"}, "e4m3"), ("mxfp4", {"1x32"}, "e8m0")])
def test_an_audit_says_which_codes_a_product_reads(name, blocks, scale):
    layer: Any = autoscale.autoscale(nn.Linear(48, 32, bias=False), matmul_format=name)
    with plimsoll.audit(layer) as audit:
        layer(torch.randn(20, 48))
    (row,) = [row for row in audit.rows if row.op == "gemm"]
    assert row.decided == "autoscale"
    assert {(operand.format, operand.source, operand.scale) for operand in row.operands} == {("e2m1", "current", scale)}
    assert {operand.granularity for operand in row.operands} == blocks


def test_a_gpt_trains_in_four_bits_as_one_whose_operands_have_two_bits():
    reference, _ = models.train("gpt2", 30, prepare=lambda model: model)
    # E2M1 has 2 bits of significand, and FP16, in which everything else is, has 11.
    rounded, _ = models.train("gpt2", 30, prepare=lambda model: model, scope=lambda: RoundedResults(11, operand_bits=2))
    for name in FORMATS:
        losses, model = models.train("gpt2", 30, prepare=lambda model, name=name: autoscale.autoscale(model, matmul_format=name))
        assert rounds_alike(losses, rounded, reference), name
        calls = {row.op: row for row in autoscale.report(model).ops}
        assert calls["aten::addmm"].codes > 0 and calls["aten::addmm"].storage == 0
