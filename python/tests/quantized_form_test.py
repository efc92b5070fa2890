"""Weights held in a recipe's own form: quantized_model_init(recipe=)."""

import copy
import io
import pickle
from typing import Any, cast

import oracle
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from plimsoll.pytorch import QuantizedTensor

RULES = {
    **oracle.RECIPES,
    "delayed-short": recipe.DelayedScaling(amax_history_len=2, amax_compute_algo="most_recent"),
    "mxfp8-down": recipe.MXFP8BlockScaling(rounding="down"),
    "dequantized": recipe.DelayedScaling(backward_override="dequantized"),
    "mxfp8-dequantized": recipe.MXFP8BlockScaling(backward_override="dequantized"),
}
# Sizes beside the blocks', so that each has a rest.
MODULES = {
    "Linear": lambda: te.Linear(200, 136),
    "LayerNormLinear": lambda: te.LayerNormLinear(200, 136),
    "LayerNormMLP": lambda: te.LayerNormMLP(200, 72, activation="swiglu"),
    "TransformerLayer": lambda: te.TransformerLayer(
        200, 136, 2, hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=True, kv_channels=68
    ),
}


def held(make, rule, seed=4):
    torch.manual_seed(seed)
    with te.quantized_model_init(recipe=rule, preserve_high_precision_init_val=True):
        return make()


def weights_of(module):
    return {name: p for name, p in module.named_parameters() if isinstance(p, QuantizedTensor)}


def values_of(module):
    """The values that the codes were made of."""
    return {name: weight.get_high_precision_init_val().clone() for name, weight in weights_of(module).items()}


def twin_of(module, make):
    """The same module with values, which no codes have been made of."""
    twin = make()
    twin.load_state_dict({**module.state_dict(), **values_of(module)})
    assert not weights_of(twin)
    return twin


def step(module, x, rule):
    x = x.clone().requires_grad_()
    module.zero_grad()
    with te.fp8_autocast(fp8_recipe=rule):
        output = module(x)
    output.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return {"output": output.detach(), "input": x.grad, **gradients, **buffers}


def assert_same(ours, expected, what=""):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ours[name], value), f"{what}: {name}"


def write(module, values):
    with torch.no_grad():
        for name, value in values.items():
            module.get_parameter(name).copy_(value)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("rule", RULES)
def test_a_module_with_codes_trains_with_the_bits_of_one_without(name, rule):
    """FP32 masters are stepped and written to both; outputs, gradients and scaling states are the same."""
    module: Any = held(MODULES[name], RULES[rule])
    twin = twin_of(module, MODULES[name])
    masters = values_of(module)
    assert len(masters) == {"Linear": 1, "LayerNormLinear": 1, "LayerNormMLP": 2, "TransformerLayer": 4}[name]
    for number in range(4):
        x = torch.randn(3, 2, 200) * (number + 1)
        ours, theirs = step(module, x, RULES[rule]), step(twin, x, RULES[rule])
        assert_same(ours, theirs, f"step {number}")
        for key, master in masters.items():
            master.mul_(1.5 if number % 2 else 0.4).sub_(ours[key], alpha=1e-3)  # amaxes rise and fall
        write(module, masters)
        write(twin, masters)
        assert not torch.equal(ours["output"], step(copy.deepcopy(module), x, RULES[rule])["output"])


@pytest.mark.parametrize("rule", [*oracle.RECIPES, "dequantized", "mxfp8-dequantized"])
def test_values_are_those_of_the_codes_that_the_output_reads(rule):
    module: Any = held(MODULES["Linear"], RULES[rule])
    values = module.weight.get_high_precision_init_val()
    expected = oracle.operand(RULES[rule], values, "weight", "fprop").float()
    assert torch.equal(module.weight.dequantize(), expected) and not torch.equal(expected, values)


def bytes_of(weight):
    tensors = [weight.codes, weight.scale, *(t for t in (weight.form.grad_codes, weight.form.grad_scale) if t is not None)]
    return [tensor.nbytes for tensor in tensors]


def test_only_recipes_whose_gradient_reads_other_codes_hold_two_sets():
    size = 200 * 136
    expected = {
        "delayed": [size, 4],
        "current": [size, 4],
        "block": [size, 2 * 2 * 4],
        "row": [size, 136 * 4, size, 200 * 4],
        "mxfp8": [size, 136 * 7, size, 5 * 200],
        "mxfp8-dequantized": [size, 136 * 7],
    }
    for rule, numbers in expected.items():
        assert bytes_of(held(MODULES["Linear"], RULES[rule]).weight) == numbers, rule


def copied(module, make, rule):
    return copy.deepcopy(module)


def pickled(module, make, rule):
    return pickle.loads(pickle.dumps(module))


def saved(module, make, rule):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(module, make, rule, assign=False):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = held(make, rule, seed=9)
    step(fresh, torch.randn(5, 200) * 50, rule)  # scales of its own, which the loaded ones replace
    fresh.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    return fresh


def loaded_by_assignment(module, make, rule):
    return loaded(module, make, rule, assign=True)


@pytest.mark.parametrize("copier", [copied, pickled, saved, loaded, loaded_by_assignment])
@pytest.mark.parametrize("rule", ["delayed", "delayed-short", "current", "row", "block", "mxfp8"])
def test_copies_go_on_as_their_original(copier, rule):
    make = MODULES["LayerNormMLP"]
    module = held(make, RULES[rule])
    masters = values_of(module)
    for factor in (1.0, 3.0):
        step(module, torch.randn(4, 200), RULES[rule])
        write(module, {name: factor * value for name, value in masters.items()})
    other = copier(module, make, RULES[rule])
    for weight, theirs in zip(weights_of(module).values(), weights_of(other).values(), strict=True):
        assert torch.equal(weight.codes, theirs.codes) and torch.equal(weight.scale, theirs.scale)
    for each in (module, other):  # written before any call: by the scale that was copied
        write(each, {name: 0.7 * value for name, value in masters.items()})
    x = torch.randn(4, 200)
    assert_same(step(other, x, RULES[rule]), step(module, x, RULES[rule]))


@pytest.mark.parametrize("rule", ["delayed", "row", "mxfp8"])
def test_a_checkpoint_of_values_loads_with_the_scales_that_come_with_it(rule):
    make = MODULES["Linear"]
    plain: Any = make()
    for factor in (1.0, 5.0):
        step(plain, torch.randn(4, 200), RULES[rule])
        write(plain, {"weight": factor * plain.weight})
    module = held(make, RULES[rule])
    step(module, torch.randn(4, 200), RULES[rule])
    module.load_state_dict(plain.state_dict())
    x = torch.randn(4, 200)
    assert_same(step(module, x, RULES[rule]), step(plain, x, RULES[rule]))


@pytest.mark.parametrize("rule", ["delayed", "current", "row", "block", "mxfp8"])
def test_an_optimizers_step_is_that_of_the_values_made_codes(rule):
    module: Any = held(MODULES["Linear"], RULES[rule])
    values, gradient = module.weight.dequantize().requires_grad_(), torch.randn(136, 200)
    module.weight.grad, values.grad = gradient, gradient
    twin = MODULES["Linear"]()
    torch.optim.SGD([module.weight], lr=0.5).step()
    torch.optim.SGD([values], lr=0.5).step()
    twin.load_state_dict({"weight": values.detach(), "bias": module.bias.detach()}, strict=False)
    x = torch.randn(4, 200)
    assert_same(step(module, x, RULES[rule]), step(twin, x, RULES[rule]))


@pytest.mark.parametrize("rule", ["delayed", "row", "block", "mxfp8"])
def test_inference_recompute_and_microbatches_read_the_codes(rule):
    make = MODULES["LayerNormMLP"]
    module = held(make, RULES[rule])
    twin = twin_of(module, make)
    x = torch.randn(4, 200)
    for first in (None, True, False):
        for each in (module, twin):
            with te.fp8_autocast(fp8_recipe=RULES[rule]):
                te.checkpoint(each, x, is_first_microbatch=first).sum().backward()
    gradients = [{name: p.grad for name, p in each.named_parameters()} for each in (module, twin)]
    assert_same(*gradients)
    with torch.no_grad(), te.fp8_autocast(fp8_recipe=RULES[rule]):
        assert torch.equal(module(x), twin(x))


def test_a_scope_of_another_recipe_takes_the_values():
    module: Any = held(MODULES["Linear"], RULES["mxfp8"])
    twin = MODULES["Linear"]()
    twin.load_state_dict({"weight": module.weight.dequantize(), "bias": module.bias}, strict=False)
    x = torch.randn(4, 200)
    assert_same(step(module, x, RULES["row"]), step(twin, x, RULES["row"]))


def test_another_dtype_keeps_all_codes():
    module: Any = held(MODULES["Linear"], RULES["mxfp8"])
    before = [t.clone() for t in (module.weight.codes, module.weight.scale, module.weight.form.grad_codes)]
    module.to(torch.bfloat16)
    after = (module.weight.codes, module.weight.scale, module.weight.form.grad_codes)
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    with te.fp8_autocast(fp8_recipe=RULES["mxfp8"]):
        module(torch.randn(2, 200, dtype=torch.bfloat16)).sum().backward()
    assert module.weight.grad.dtype == torch.bfloat16


def test_grouped_products_hold_theirs():
    rule = RULES["mxfp8"]
    module: Any = held(lambda: te.GroupedLinear(2, 200, 136), rule)
    twin = twin_of(module, lambda: te.GroupedLinear(2, 200, 136))
    x = torch.randn(7, 200)
    with te.fp8_autocast(fp8_recipe=rule):
        ours, theirs = module(x, [3, 4]), twin(x, [3, 4])
    assert len(weights_of(module)) == 2 and torch.equal(ours, theirs)


def test_recipes_that_make_no_codes_of_a_weight_are_one_error():
    no_codes = recipe.MXFP8BlockScaling(override_linear_precision=(True, False, False))
    function = recipe.DelayedScaling(scaling_factor_compute_algo=lambda amax, scale, largest, rule: largest / amax)
    for rule, message in ((no_codes, "the output is a product of codes"), (function, "a recipe without functions")):
        with pytest.raises(ValueError, match=message), te.quantized_model_init(recipe=rule):
            pass
    with pytest.raises(ValueError, match="reads codes"):
        torch.ops.plimsoll.quantize_weight(torch.ones(2, 2), recipe='"bf16"')
    with pytest.raises(TypeError, match="recipe"), te.quantized_model_init(recipe=cast(Any, "mxfp8")):
        pass


def test_a_backward_pass_in_high_precision_reads_the_values_of_the_codes():
    """The values that the codes were made of are not kept."""
    rule = recipe.Float8CurrentScaling(backward_override="high_precision")
    module: Any = held(MODULES["Linear"], rule)
    twin, plain = (twin_of(module, MODULES["Linear"]) for _ in range(2))
    plain.load_state_dict({"weight": module.weight.dequantize()}, strict=False)
    x = torch.randn(5, 200)
    ours, theirs = step(module, x, rule), step(twin, x, rule)
    assert torch.equal(ours["output"], theirs["output"]) and not torch.equal(ours["input"], theirs["input"])
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(plain(leaf), leaf, 2 * ours["output"])
    assert torch.equal(ours["input"], gradient)
