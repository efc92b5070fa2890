"""Norms, LayerNormLinear and LayerNormMLP: against torch's functions, and under recipes against their own parts."""

from typing import Any, cast

import composition
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from torch.nn import functional

ACTIVATIONS = [*composition.CURVES, *composition.GATES, "clamped_swiglu"]
NORMS = ["LayerNorm", "RMSNorm"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 33), (7, 129)])
def test_norms(shape, kind, zero_centered):
    module = getattr(te, kind)(shape[-1], zero_centered_gamma=zero_centered, eps=1e-3)
    assert torch.equal(module.weight, torch.full((shape[-1],), 0.0 if zero_centered else 1.0))
    composition.randomize(module)
    composition.check(
        module, lambda p, x: composition.norm(x, p["weight"], p.get("bias"), kind, zero_centered, 1e-3), torch.randn(shape)
    )


def test_norms_return_the_dtype_of_their_input_or_of_the_scope():
    module = te.LayerNorm(8)
    assert module(torch.randn(2, 8).bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.randn(2, 8)).dtype == torch.bfloat16
    assert module(torch.zeros(0, 8)).shape == (0, 8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_layer_norm_linear(kind, bias):
    module = composition.randomize(te.LayerNormLinear(33, 17, bias=bias, normalization=kind))
    names = ["layer_norm_weight"] + ["layer_norm_bias"] * (kind == "LayerNorm") + ["weight"] + ["bias"] * bias
    assert [name for name, _ in module.named_parameters()] == names
    composition.check(
        module,
        lambda p, x: functional.linear(
            composition.norm(x, p["layer_norm_weight"], p.get("layer_norm_bias"), kind), p["weight"], p.get("bias")
        ),
        torch.randn(4, 6, 33),
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layer_norm_mlp(activation, kind, bias):
    module = composition.randomize(te.LayerNormMLP(32, 48, bias=bias, normalization=kind, activation=activation))

    def mlp(p, x):
        normalised = composition.norm(x, p["layer_norm_weight"], p.get("layer_norm_bias"), kind)
        hidden = composition.activate(functional.linear(normalised, p["fc1_weight"], p.get("fc1_bias")), activation)
        return functional.linear(hidden, p["fc2_weight"], p.get("fc2_bias"))

    composition.check(module, mlp, torch.randn(5, 3, 32))


PARAMS = [{"limit": 0.5}, {"alpha": -1.0, "glu_linear_offset": 0.0}, {"limit": 2.0, "alpha": 1.0, "glu_linear_offset": 0.5}]


@pytest.mark.parametrize("params", PARAMS)
def test_an_activation_has_the_parameters_that_it_is_given(params):
    module = composition.randomize(te.LayerNormMLP(32, 48, activation="clamped_swiglu", activation_params=params))
    layer: Any = te.TransformerLayer(32, 48, 2, activation="clamped_swiglu", activation_params=params)
    layer.layernorm_mlp.load_state_dict(module.state_dict())

    def mlp(p, x):
        normalised = composition.norm(x, p["layer_norm_weight"], p["layer_norm_bias"], "LayerNorm")
        hidden = functional.linear(normalised, p["fc1_weight"], p["fc1_bias"])
        return functional.linear(composition.activate(hidden, "clamped_swiglu", params), p["fc2_weight"], p["fc2_bias"])

    x = torch.randn(5, 3, 32)
    composition.check(module, mlp, x)
    assert torch.equal(layer.layernorm_mlp(x), module(x))


@pytest.mark.parametrize("name", oracle.RECIPES)
def test_an_activation_with_parameters_has_the_bits_of_its_parts(name):
    fused: Any = composition.randomize(te.LayerNormMLP(64, 40, activation="clamped_swiglu", activation_params={"limit": 0.5}))
    again: Any = te.LayerNormMLP(64, 40, activation="clamped_swiglu", activation_params={"limit": 0.5}, checkpoint=True)
    again.load_state_dict(fused.state_dict())
    first: Any = te.LayerNormLinear(64, 80)
    second: Any = te.Linear(40, 64)
    first.load_state_dict({key.replace("fc1_", ""): p for key, p in fused.named_parameters() if "fc2" not in key})
    second.load_state_dict({"weight": fused.fc2_weight, "bias": fused.fc2_bias})
    x, grad = torch.randn(19, 64), torch.randn(19, 64)
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES[name]):
        ours, anew = fused(x), again(x)
        parts = second(torch.ops.plimsoll.activation(first(x), "clamped_swiglu", [0.5, 1.702, 1.0]))
    assert torch.equal(ours, parts) and torch.equal(anew, ours)
    for output in (ours, anew, parts):
        output.backward(grad)
    assert torch.equal(fused.fc2_weight.grad, second.weight.grad)
    for key, parameter in fused.named_parameters():
        assert torch.equal(again.get_parameter(key).grad, parameter.grad), key


def test_parameters_that_an_activation_has_not_are_one_error():
    for activation, params, message in (
        ("clamped_swiglu", {"limits": 1.0}, "activation_params of 'clamped_swiglu' one of limit, alpha, glu_linear_offset"),
        ("swiglu", {"limit": 1.0}, "activation_params of 'swiglu' none, got 'limit'"),
        ("clamped_swiglu", {"limit": 0.0}, "limit of clamped_swiglu that is finite and > 0, got 0"),
        ("clamped_swiglu", {"alpha": float("nan")}, "alpha of clamped_swiglu that is finite, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            te.LayerNormMLP(8, 8, activation=activation, activation_params=params)


def test_the_parameters_of_an_activation_are_shown():
    module = te.LayerNormMLP(8, 8, activation="clamped_swiglu", activation_params={"limit": 5})
    assert "activation=clamped_swiglu, activation_params=[5.0, 1.70" in repr(module)
    assert "activation_params" not in repr(te.LayerNormMLP(8, 8))


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("name", oracle.RECIPES)
def test_layer_norm_linear_has_the_bits_of_norm_then_linear(name):
    fused = composition.randomize(te.LayerNormLinear(65, 33))
    norm, linear = te.LayerNorm(65), te.Linear(65, 33)
    norm.load_state_dict({"weight": fused.layer_norm_weight, "bias": fused.layer_norm_bias})
    linear.load_state_dict({"weight": fused.weight, "bias": fused.bias})
    for _ in range(2):
        x, grad = torch.randn(19, 65), torch.randn(19, 33)
        with te.fp8_autocast(fp8_recipe=oracle.RECIPES[name]):
            ours, parts = fused(x), linear(norm(x))
        assert torch.equal(ours, parts)
        ours.backward(grad)
        parts.backward(grad)
    for ours, theirs in ((fused.weight, linear.weight), (fused.layer_norm_weight, norm.weight)):
        assert torch.equal(cast(torch.Tensor, ours.grad), cast(torch.Tensor, theirs.grad))
    for buffer, value in linear.named_buffers():
        assert torch.equal(fused.get_buffer(buffer), value), buffer


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", oracle.RECIPES)
def test_layer_norm_mlp_has_the_bits_of_its_parts(name, activation):
    fused = composition.randomize(te.LayerNormMLP(64, 40, activation=activation))
    first: Any = te.LayerNormLinear(64, fused.fc1_weight.shape[0])
    second: Any = te.Linear(40, 64)
    first.load_state_dict(
        {
            "layer_norm_weight": fused.layer_norm_weight,
            "layer_norm_bias": fused.layer_norm_bias,
            "weight": fused.fc1_weight,
            "bias": fused.fc1_bias,
        }
    )
    second.load_state_dict({"weight": fused.fc2_weight, "bias": fused.fc2_bias})
    x, grad = torch.randn(19, 64), torch.randn(19, 64)
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES[name]):
        ours = fused(x)
        parts = second(torch.ops.plimsoll.activation(first(x), activation))
    assert torch.equal(ours, parts)
    ours.backward(grad)
    parts.backward(grad)
    assert torch.equal(fused.fc2_weight.grad, second.weight.grad)
    assert torch.equal(fused.fc1_weight.grad, first.weight.grad)
    assert torch.equal(fused.layer_norm_weight.grad, first.layer_norm_weight.grad)


def test_tuples_come_in_the_order_output_bias_norm():
    x = torch.randn(3, 8)
    module = composition.randomize(te.LayerNormLinear(8, 5, return_bias=True, return_layernorm_output=True))
    output, bias, normalised = module(x)
    plain = functional.linear(normalised, module.weight)
    composition.assert_close(output.detach(), plain.detach().double(), "output")
    assert torch.equal(bias, module.bias)
    module = composition.randomize(te.LayerNormMLP(8, 16, return_bias=True, return_layernorm_output=True))
    output, bias, normalised = module(x)
    assert torch.equal(bias, module.fc2_bias) and normalised.shape == x.shape and output.shape == x.shape


def test_no_rows_and_one_row():
    for module in (te.LayerNormLinear(8, 5), te.LayerNormMLP(8, 16)):
        for rows in (0, 1):
            with te.fp8_autocast():
                output = module(torch.randn(rows, 8, requires_grad=True))
            output.sum().backward()
            assert output.shape[0] == rows
