"""Recipes: Transformer Engine's fields, and errors that name the field, what was expected and what came."""

import copy
import dataclasses
import functools
import json
from typing import Any

import four_bit_oracle
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe


def defaults(kind):
    return {field.name: getattr(kind(), field.name) for field in dataclasses.fields(kind)}


def test_fields_and_defaults_are_those_of_transformer_engine():
    shared = {"fp8_dpa": False, "fp8_mha": False, "backward_override": None}
    hybrid, e4m3 = recipe.Format.HYBRID, recipe.Format.E4M3
    delayed = {
        "margin": 0,
        "fp8_format": hybrid,
        "amax_history_len": 1024,
        "amax_compute_algo": "max",
        "scaling_factor_compute_algo": None,
        "reduce_amax": True,
        **shared,
    }
    assert delayed.items() <= defaults(recipe.DelayedScaling).items()
    assert {"use_power_2_scales": False, "fp8_format": hybrid, **shared}.items() <= defaults(recipe.Float8CurrentScaling).items()
    blocks = {
        "use_f32_scales": False,
        "fp8_format": e4m3,
        "x_block_scaling_dim": 1,
        "w_block_scaling_dim": 2,
        "grad_block_scaling_dim": 1,
        **shared,
    }
    assert blocks.items() <= defaults(recipe.Float8BlockScaling).items()
    assert {"margin": 0, "fp8_format": e4m3, **shared}.items() <= defaults(recipe.MXFP8BlockScaling).items()
    four = {"fp4_format": recipe.Format.E2M1, "fp8_format": e4m3, **shared}
    switches = dict.fromkeys(("disable_rht", "disable_stochastic_rounding", "disable_2d_quantization"), False)
    assert {**four, **switches}.items() <= defaults(recipe.NVFP4BlockScaling).items()
    assert {**four, "rounding": "up"}.items() <= defaults(recipe.MXFP4BlockScaling).items()
    assert recipe.Format.E2M1.value == (6, 6)
    assert recipe.Format.HYBRID.value == (448, 57344) and recipe.Format.E4M3.value.max_bwd == 448


@pytest.mark.parametrize(
    "kind,true",
    [
        (recipe.DelayedScaling, {"delayed", "float8_per_tensor_scaling"}),
        (recipe.Float8CurrentScaling, {"float8_current_scaling", "float8_per_tensor_scaling"}),
        (recipe.Float8BlockScaling, {"float8_block_scaling"}),
        (recipe.MXFP8BlockScaling, {"mxfp8"}),
        (recipe.NVFP4BlockScaling, {"nvfp4"}),
        (recipe.MXFP4BlockScaling, set()),
    ],
)
def test_predicates_hold_on_classes_and_objects(kind, true):
    names = ("delayed", "mxfp8", "float8_current_scaling", "float8_per_tensor_scaling", "float8_block_scaling", "nvfp4", "custom")
    for which in (kind, kind()):
        assert {name for name in names if getattr(which, name)()} == true


def test_our_names_are_the_same_objects():
    assert recipe.CurrentScaling is recipe.Float8CurrentScaling
    assert recipe.BlockScaling is recipe.Float8BlockScaling
    assert recipe.Mxfp8 is recipe.MXFP8BlockScaling
    assert recipe.Nvfp4Scaling is recipe.NVFP4BlockScaling
    assert recipe.Mxfp4Scaling is recipe.MXFP4BlockScaling


@pytest.mark.parametrize(
    "kind,arguments,message",
    [
        (recipe.DelayedScaling, {"fp8_format": recipe.Format.E5M2}, "fp8_format Format.E4M3 or Format.HYBRID.*got <Format.E5M2"),
        (recipe.MXFP8BlockScaling, {"fp8_format": recipe.Format.E5M2}, "fp8_format"),
        (recipe.DelayedScaling, {"fp8_format": "E4M3"}, "fp8_format a Format, got 'E4M3'"),
        (recipe.DelayedScaling, {"margin": 1.5}, "margin an integer, got 1.5"),
        (recipe.DelayedScaling, {"margin": 200}, "margin in .*got 200"),
        (recipe.DelayedScaling, {"interval": 0}, "interval >= 1, got 0"),
        (recipe.DelayedScaling, {"amax_history_len": 0}, "amax_history_len >= 1, got 0"),
        (recipe.DelayedScaling, {"amax_compute_algo": "mean"}, "amax_compute_algo .*got 'mean'"),
        (recipe.DelayedScaling, {"override_linear_precision": (True, False)}, "override_linear_precision"),
        (recipe.DelayedScaling, {"high_precision_format": "fp64"}, "high_precision_format .*got 'fp64'"),
        (recipe.DelayedScaling, {"fp8_dpa": True}, "fp8_dpa False"),
        (recipe.DelayedScaling, {"history": 3}, "history"),
        (recipe.Float8CurrentScaling, {"granularity": "column"}, "granularity"),
        (recipe.Float8BlockScaling, {"w_block_scaling_dim": 1}, "w_block_scaling_dim 2"),
        (recipe.MXFP8BlockScaling, {"rounding": "even"}, "rounding"),
        (recipe.MXFP8BlockScaling, {"margin": 1}, "margin 0"),
        (
            recipe.MXFP8BlockScaling,
            {"fp8_format": recipe.Format.E2M1},
            "fp8_format Format.E4M3 or Format.HYBRID.*got <Format.E2M1",
        ),
        (recipe.NVFP4BlockScaling, {"disable_rht": 1}, "disable_rht True or False, got 1"),
        (recipe.NVFP4BlockScaling, {"ms_eden": "yes"}, "ms_eden True or False, got 'yes'"),
        (recipe.NVFP4BlockScaling, {"ms_eden": True, "four_over_six": True}, "ms_eden False with four_over_six, got True"),
        (recipe.NVFP4BlockScaling, {"fp4_format": recipe.Format.E4M3}, "fp4_format"),
        (recipe.NVFP4BlockScaling, {"fp8_format": recipe.Format.HYBRID}, "fp8_format"),
        (recipe.NVFP4BlockScaling, {"high_precision_format": "fp64"}, "high_precision_format .*got 'fp64'"),
        (recipe.MXFP4BlockScaling, {"rounding": "even"}, "rounding"),
    ],
)
def test_mistakes_are_named(kind, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kind(**arguments)


def test_a_field_changed_later_is_checked_where_it_is_used():
    rule = recipe.DelayedScaling()
    rule.amax_history_len = -1
    with pytest.raises(ValueError, match="amax_history_len"), te.fp8_autocast(fp8_recipe=rule):
        pass


RECIPES = {**oracle.RECIPES, **four_bit_oracle.RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_cpp_reads_every_field_that_it_is_given(name):
    text = RECIPES[name].to_json("bf16")
    assert json.loads(text)["high_precision_format"] == "bf16"
    layer = te.Linear(2, 2)

    def run(recipe):
        return torch.ops.plimsoll.scaled_linear(
            torch.ones(1, 2), layer.weight, None, state=layer._state(), held=[], recipe=recipe
        )

    assert run(text).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="nonsense"):
        run(text.replace("backward_override", "nonsense"))


KINDS = {
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "row": functools.partial(recipe.Float8CurrentScaling, granularity="row"),
    "block": recipe.Float8BlockScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "mxfp4": recipe.MXFP4BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
    "ms-eden": functools.partial(recipe.NVFP4BlockScaling, ms_eden=True),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_backward_in_high_precision_has_the_bits_of_its_products_without_codes(kind):
    torch.manual_seed(2)
    layers = [te.Linear(24, 40), te.Linear(24, 40)]
    layers[1].load_state_dict(layers[0].state_dict())
    results = []
    rules = (kind(backward_override="high_precision"), kind(override_linear_precision=(False, True, True)))
    source = torch.randn(7, 24)
    for layer, rule in zip(layers, rules, strict=True):
        x = source.clone().requires_grad_()
        with te.fp8_autocast(fp8_recipe=rule):
            output = layer(x)
        output.square().sum().backward()
        results.append((output, x.grad, layer.weight.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    with pytest.raises(ValueError, match='backward_override None, "high_precision" or "dequantized"'):
        kind(backward_override="quantized")


@pytest.mark.parametrize("save_original_input", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_backward_dequantized_has_the_bits_of_products_of_the_values_of_the_forwards_codes(kind, compiled, save_original_input):
    torch.manual_seed(2)
    torch._dynamo.reset()
    rule = kind(backward_override="dequantized")
    layer: Any = te.Linear(200, 136, save_original_input=save_original_input)
    plain = copy.deepcopy(layer)
    called = torch.compile(layer, backend="eager", fullgraph=True) if compiled else layer
    x: Any = torch.randn(67, 200, requires_grad=True)
    grad = torch.randn(67, 136)
    with te.fp8_autocast(fp8_recipe=rule):
        output = called(x)
    output.backward(grad)
    has_four_bits = isinstance(rule, (recipe.NVFP4BlockScaling, recipe.MXFP4BlockScaling))
    operand = functools.partial(four_bit_oracle.operand, seed=None) if has_four_bits else oracle.operand
    weight, inputs = (operand(kind(), t.detach(), role, "fprop").float() for t, role in ((layer.weight, "weight"), (x, "input")))
    gemm = torch.ops.plimsoll.gemm
    assert torch.equal(x.grad, gemm(grad, weight, None, "grad_input", torch.float32))
    assert torch.equal(layer.weight.grad, gemm(grad, inputs, None, "grad_weight", torch.float32))
    assert not torch.equal(inputs, x) and not torch.equal(weight, layer.weight)
    with te.fp8_autocast(fp8_recipe=kind()):
        assert torch.equal(plain(x), output)
