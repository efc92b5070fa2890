"""Linear: under every recipe against the oracle, and without one against torch.nn."""

import copy
import itertools
from typing import Any

import oracle
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from plimsoll.pytorch.autocast import high_precision_dtype, recipe_text
from torch._subclasses.fake_tensor import FakeTensorMode

SHAPES = [(1, 1, 1), (5, 33, 17), (64, 128, 96), (130, 257, 129)]


def run(layer, x, grad, rule=None, **keywords):
    x = x.clone().requires_grad_()
    with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
        output = layer(x, **keywords)
    output.backward(grad)
    results = {"output": output.detach(), "input": x.grad, "weight": layer.weight.grad}
    if layer.bias is not None:
        results["bias"] = layer.bias.grad
    return results


def case(bias, rows, columns, outputs):
    torch.manual_seed(rows * columns + outputs)
    layer: Any = te.Linear(columns, outputs, bias=bias)
    if bias:
        torch.nn.init.normal_(layer.bias)
    return layer, torch.randn(rows, columns), torch.randn(rows, outputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [None, *oracle.RECIPES])
def test_output_and_gradients_are_those_of_the_oracle(name, shape, bias):
    layer, x, grad = case(bias, *shape)
    rule = oracle.RECIPES.get(name)
    ours = run(layer, x, grad, rule)
    expected = oracle.linear(rule, x, layer.weight.detach(), layer.bias.detach() if bias else None, grad)
    assert ours.keys() == expected.keys()
    for what, value in ours.items():
        oracle.assert_within(value, expected[what], f"{name} {shape} {what}")


@pytest.mark.parametrize("override", [*itertools.product([False, True], repeat=3)])
@pytest.mark.parametrize(
    "kind", [recipe.DelayedScaling, recipe.Float8CurrentScaling, recipe.Float8BlockScaling, recipe.MXFP8BlockScaling]
)
def test_each_product_can_run_in_high_precision(kind, override):
    layer, x, grad = case(True, 37, 65, 43)
    rule = kind(override_linear_precision=override)
    ours = run(layer, x, grad, rule)
    expected = oracle.linear(rule, x, layer.weight.detach(), layer.bias.detach(), grad)
    for what, value in ours.items():
        oracle.assert_within(value, expected[what], f"{kind.__name__} {override} {what}")


def test_leading_dimensions_strides_and_no_rows():
    layer, x, grad = case(True, 24, 33, 17)
    flat = run(layer, x, grad, oracle.RECIPES["current"])
    for shaped in (x.view(2, 3, 4, 33), x.view(4, 6, 33).transpose(0, 1).contiguous().transpose(0, 1), x.t().contiguous().t()):
        layer.zero_grad()
        ours = run(layer, shaped, grad.view(*shaped.shape[:-1], 17), oracle.RECIPES["current"])
        assert torch.equal(ours["output"].reshape(24, 17), flat["output"])
        assert torch.equal(ours["weight"], flat["weight"])
    one = layer(x[0])
    assert one.shape == (17,)
    for rule in (None, *oracle.RECIPES.values()):
        layer.zero_grad()
        empty = run(layer, torch.zeros(0, 33), torch.zeros(0, 17), rule)
        assert empty["output"].shape == (0, 17)
        assert empty["weight"].count_nonzero() == 0


def test_split_parameters_are_rows_of_one_product():
    whole, x, grad = case(True, 12, 20, 18)
    split: Any = te.Linear(20, 18, parameters_split={"query": 10, "key_": 5, "value": 3})
    assert [name for name, _ in split.named_parameters()] == [
        "query_weight",
        "key_weight",
        "value_weight",
        "query_bias",
        "key_bias",
        "value_bias",
    ]
    with torch.no_grad():
        for name, rows in (("query", slice(0, 10)), ("key", slice(10, 15)), ("value", slice(15, 18))):
            getattr(split, f"{name}_weight").copy_(whole.weight[rows])
            getattr(split, f"{name}_bias").copy_(whole.bias[rows])
    rule = oracle.RECIPES["delayed"]
    expected = run(whole, x, grad, rule)
    with te.fp8_autocast(fp8_recipe=rule):
        output = split(x)
    output.backward(grad)
    assert torch.equal(output, expected["output"])
    assert torch.equal(torch.cat([split.query_weight.grad, split.key_weight.grad, split.value_weight.grad]), expected["weight"])


def test_return_bias_leaves_the_bias_to_the_caller():
    layer, x, _ = case(True, 3, 8, 5)
    layer.return_bias = True
    output, bias = layer(x)
    layer.return_bias = False
    assert torch.equal(output + bias, layer(x))
    assert te.Linear(8, 5, bias=False, return_bias=True)(x)[1] is None


def test_torch_autocast_or_the_recipe_decides_the_high_precision_dtype():
    layer, x, _ = case(True, 3, 8, 5)
    assert layer(x).dtype == torch.float32
    with te.fp8_autocast():
        assert layer(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16), te.fp8_autocast():
        output = layer(x)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    with te.fp8_autocast(fp8_recipe=recipe.DelayedScaling(high_precision_format="fp16")):
        assert layer(x).dtype == torch.float16
    assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


def test_torch_autocast_of_a_tensors_device_decides():
    with FakeTensorMode():  # a card need not be there
        x, double = (torch.empty(8, device="cuda", dtype=dtype) for dtype in (torch.float32, torch.float64))
    here, torchs = torch.empty(8, device="meta"), torch.get_autocast_dtype("cuda")
    counted = recipe.DelayedScaling(scaling_factor_compute_algo=lambda amax, scale, fp8_max, recipe: fp8_max / amax)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        assert high_precision_dtype(x) == torch.bfloat16 and high_precision_dtype(here) == torch.float32
        assert recipe_text("here", double) == '"bf16"'
        with te.fp8_autocast(fp8_recipe=counted):  # a user's function: Python chooses the recipe, the library otherwise
            assert recipe_text("here", x) == counted.to_json("bf16")
            assert recipe_text("here", here) == counted.to_json("fp32")
        with te.fp8_autocast(fp8_recipe=recipe.DelayedScaling(high_precision_format="fp16")):
            assert high_precision_dtype(x) == torch.float16
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torchs)


def test_inputs_without_gradient_and_frozen_weights():
    layer, x, grad = case(True, 9, 16, 8)
    expected = run(layer, x, grad, oracle.RECIPES["current"])
    layer.zero_grad()
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES["current"]):
        output = layer(x)
    output.backward(grad)
    assert torch.equal(layer.weight.grad, expected["weight"])
    layer.requires_grad_(False)
    layer.zero_grad()
    x.requires_grad_()
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES["current"]):
        layer(x).backward(grad)
    assert torch.equal(x.grad, expected["input"]) and layer.weight.grad is None


def test_first_microbatch_keeps_the_codes_of_the_weight():
    layer, x, grad = case(True, 9, 16, 8)
    rule = recipe.DelayedScaling()
    with pytest.raises(RuntimeError, match="is_first_microbatch = true"), te.fp8_autocast(fp8_recipe=rule):
        layer(x, is_first_microbatch=False)
    with te.fp8_autocast(fp8_recipe=rule):
        first, second = layer(x, is_first_microbatch=True), layer(x, is_first_microbatch=False)
    assert torch.equal(first, second)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="changed since"), te.fp8_autocast(fp8_recipe=rule):
        layer(x, is_first_microbatch=False)


def test_evaluation_sees_writes_that_torch_does_not_count():
    layer, x = te.Linear(64, 48).eval(), torch.randn(3, 64)
    average, mask = torch.randn(48, 64), torch.rand(48, 64) < 0.8
    writes = (
        lambda weight: weight.data.mul_(2),
        lambda weight: weight.data.mul_(0.99).add_(average, alpha=0.01),
        lambda weight: weight.detach().numpy().__imul__(mask.numpy()),
    )
    with torch.no_grad():
        for write in writes:
            for _ in range(3):
                layer(x)
            write(layer.weight)
            assert torch.equal(layer(x), copy.deepcopy(layer)(x))
