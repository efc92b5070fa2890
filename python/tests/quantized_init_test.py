"""Parameters that are FP8 codes."""

import copy
import io
import pickle
from typing import Any, cast

import composition
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from plimsoll.pytorch import QuantizedTensor
from quantized_modules import MODULES, is_parameter, marked, quantized, weights_of


def twin_of(module, make):
    """The same values, not held as codes."""
    twin = make()
    twin.load_state_dict(module.state_dict())
    assert not weights_of(twin)
    return twin


def step(module, x, rule):
    x = x.clone().requires_grad_()
    with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
        output = module(x)
    output.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    return {"output": output.detach(), "input": x.grad, **gradients}


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize("name", MODULES)
def test_weights_are_codes_and_the_rest_is_not(name):
    module = quantized(MODULES[name])
    weights: dict[str, Any] = weights_of(module)
    assert weights.keys() == {name for name, p in module.named_parameters() if p.dim() == 2}
    for weight in weights.values():
        assert is_parameter(weight) and weight.requires_grad and weight.is_leaf
        assert weight.dtype == torch.float32 and weight.device.type == "cpu"
        assert weight.codes.dtype == torch.uint8 and weight.codes.nbytes == weight.numel()
        assert torch.frexp(weight.scale)[0].item() == 0.5  # a power of two
    assert not weights_of(MODULES[name]())  # outside the scope


# Codes of a power-of-two scale are numbers of every recipe with such scales: no second rounding, no difference.
EXACT = {
    None: None,
    "power-of-two": recipe.DelayedScaling(power_of_two=True, fp8_format=recipe.Format.E4M3),
    "current-power-of-two": recipe.Float8CurrentScaling(use_power_2_scales=True),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("rule", EXACT)
def test_products_have_the_bits_of_the_values(name, rule):
    module = quantized(MODULES[name])
    twin = twin_of(module, MODULES[name])
    x = torch.randn(6, 3, 32)
    assert_same(step(module, x, EXACT[rule]), step(twin, x, EXACT[rule]))


@pytest.mark.parametrize("rule", ["delayed", "current", "row", "block-fp32"])
def test_products_are_within_the_bound_of_the_codes(rule):
    """Bound of exact products with the codes, where the recipe takes them as they are, or with its own codes of the values."""
    module = quantized(MODULES["Linear"])
    x, grad = torch.randn(17, 32), torch.randn(17, 48)
    weight = module.weight.dequantize()
    leaf = x.clone().requires_grad_()
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES[rule]):
        output = module(leaf)
    output.backward(grad)
    same = rule in ("delayed", "current")
    one, two = (
        weight.double() if same else oracle.operand(oracle.RECIPES[rule], weight, "weight", product)
        for product in ("fprop", "dgrad")
    )
    inputs = oracle.operand(oracle.RECIPES[rule], x, "input", "fprop")
    gradient = oracle.operand(oracle.RECIPES[rule], grad, "grad_output", "dgrad")
    exact, bound = oracle.product(inputs, one.T, 32)
    exact = exact + module.bias.double()
    oracle.assert_within(output, (exact, bound + 2.0**-23 * (exact.abs() + module.bias.abs())), "output")
    oracle.assert_within(leaf.grad, oracle.product(gradient, two, 48), "input")


def test_a_quantized_weight_records_no_amax():
    module = quantized(MODULES["Linear"])
    step(module, torch.randn(3, 32), recipe.DelayedScaling())
    assert module.weight_step.item() == 0 and module.input_step.item() == module.grad_output_step.item() == 1


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=2.0, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.05),
        lambda p: torch.optim.AdamW(p, lr=0.05, foreach=True),
        lambda p: torch.optim.Adagrad(p, lr=0.05),
    ],
)
def test_optimizers_step_through_the_codes(optimizer):
    module = quantized(MODULES["LayerNormMLP"])
    x, target = torch.randn(64, 32), torch.randn(64, 32)
    chosen = optimizer(module.parameters())
    losses = []
    for _ in range(30):
        with te.fp8_autocast():
            loss = (module(x) - target).square().mean()
        loss.backward()
        chosen.step()
        chosen.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert len(weights_of(module)) == 2


def test_an_optimizers_step_is_that_of_the_values_rounded_to_codes():
    module = quantized(MODULES["Linear"])
    values = module.weight.dequantize().requires_grad_()
    gradient = torch.randn(48, 32)
    module.weight.grad, values.grad = gradient, gradient
    torch.optim.SGD([module.weight], lr=0.5).step()
    torch.optim.SGD([values], lr=0.5).step()
    assert torch.equal(module.weight.dequantize(), QuantizedTensor.quantize(values.detach()).dequantize())


def test_high_precision_values_are_kept_for_master_weights():
    module = quantized(MODULES["Linear"], preserve_high_precision_init_val=True)
    values = module.weight.get_high_precision_init_val()
    torch.manual_seed(4)
    assert torch.equal(values, te.Linear(32, 48).weight)
    assert torch.equal(module.weight.dequantize(), QuantizedTensor.quantize(values).dequantize())
    module.weight.clear_high_precision_init_val()
    assert module.weight.get_high_precision_init_val() is None
    assert quantized(MODULES["Linear"]).weight.get_high_precision_init_val() is None


def test_master_weights_write_through():
    module = quantized(MODULES["Linear"], preserve_high_precision_init_val=True)
    master = module.weight.get_high_precision_init_val().clone()
    for _ in range(5):
        master += 1e-4
        with torch.no_grad():
            module.weight.copy_(master)
    module.weight.data = master + 1
    assert isinstance(module.weight, QuantizedTensor)
    assert torch.equal(module.weight.dequantize(), QuantizedTensor.quantize(master + 1).dequantize())
    assert type(module.weight.clone().float()) is torch.Tensor and type(module.weight.detach() + 0) is torch.Tensor


def copied(module, make):
    return copy.deepcopy(module)


def pickled(module, make):
    return pickle.loads(pickle.dumps(module))


def saved(module, make):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(module, make):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = quantized(make, seed=9)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def loaded_by_assignment(module, make):
    fresh = quantized(make, seed=9)
    fresh.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)
    return fresh


@pytest.mark.parametrize("copier", [copied, pickled, saved, loaded, loaded_by_assignment])
def test_copies_hold_the_same_codes(copier):
    make = MODULES["LayerNormMLP"]
    module = quantized(make)
    step(module, torch.randn(4, 32), recipe.DelayedScaling())
    other = copier(module, make)
    assert weights_of(other).keys() == weights_of(module).keys()
    x = torch.randn(4, 32)
    assert_same(step(other, x, recipe.DelayedScaling()), step(module, x, recipe.DelayedScaling()))


def test_a_checkpoint_of_values_loads_into_codes():
    plain = te.Linear(32, 48)
    module = quantized(MODULES["Linear"])
    module.load_state_dict(plain.state_dict())
    assert torch.equal(module.weight.dequantize(), QuantizedTensor.quantize(plain.weight).dequantize())


@pytest.mark.parametrize("copier", [copied, pickled, saved])
def test_copies_carry_what_hangs_on_a_parameter(copier):
    module, _ = marked()
    other = copier(module, None).weight
    assert torch.equal(other.get_high_precision_init_val(), module.weight.get_high_precision_init_val())
    assert torch.equal(other.main_grad, module.weight.main_grad) and other.partition_dim == 1
    assert other.main_grad is not module.weight.main_grad


def test_pickles_from_before_still_load():
    rebuild, arguments = quantized(MODULES["Linear"]).weight.__reduce_ex__(2)
    old = rebuild(*arguments[:5])
    assert is_parameter(old) and torch.equal(old.codes, arguments[0])


def test_weights_that_two_modules_share_stay_shared():
    one, two = quantized(MODULES["Linear"]), quantized(MODULES["Linear"])
    two.weight = one.weight
    torch.nn.Sequential(one, two).half()
    assert one.weight is two.weight and one.weight.dtype == torch.float16


def test_meta_modules_materialise_as_codes():
    module = quantized(lambda: te.Linear(32, 48, device="meta"))
    module.reset_parameters()
    assert isinstance(module.weight, QuantizedTensor)
    codes = module.weight.codes
    module.reset_parameters()
    assert module.weight.codes is codes


def test_memory_is_one_byte_an_element():
    module = quantized(lambda: te.Linear(256, 256, bias=False))
    assert module.weight.codes.untyped_storage().nbytes() + module.weight.scale.nbytes == 256 * 256 + 4


def test_inference_and_frozen_weights():
    module = quantized(MODULES["LayerNormMLP"])
    x = torch.randn(5, 32)
    rule = recipe.DelayedScaling()
    expected = step(module, x, rule)["output"]
    with torch.no_grad(), te.fp8_autocast(fp8_recipe=rule):
        assert torch.equal(module(x), expected)
    with torch.inference_mode(), te.fp8_autocast(fp8_recipe=rule):
        assert torch.equal(module(x), expected)
    module.requires_grad_(False)
    with te.fp8_autocast(fp8_recipe=rule):
        assert not module(x).requires_grad


def test_recompute_and_microbatches():
    module = quantized(MODULES["LayerNormMLP"])
    twin = copy.deepcopy(module)
    x = torch.randn(5, 32)
    for first in (None, True, False):
        with te.fp8_autocast():
            te.checkpoint(module, x, is_first_microbatch=first).sum().backward()
            twin(x).sum().backward()
    assert torch.equal(module.fc1_weight.grad, twin.fc1_weight.grad)


def test_scopes():
    with te.fp8_model_init(enabled=False):
        assert not weights_of(te.Linear(4, 4))
    with te.quantized_model_init(recipe=recipe.MXFP8BlockScaling()):
        assert weights_of(te.Linear(4, 4))
        with te.fp8_model_init(enabled=False):
            assert not weights_of(te.Linear(4, 4))
        assert weights_of(te.Linear(4, 4))
    with pytest.raises(TypeError, match="recipe"), te.fp8_model_init(recipe=cast(Any, "fp8")):
        pass
    assert not weights_of(te.Linear(4, 4))


def test_weights_are_within_half_a_code_of_what_was_drawn():
    module = quantized(MODULES["Linear"], preserve_high_precision_init_val=True)
    composition.assert_close(module.weight.dequantize(), module.weight.get_high_precision_init_val(), "weight", 2.0**-4)


def test_codes_on_another_device_than_the_weight_are_one_error():
    state = [torch.zeros(0)] + 3 * [torch.zeros(1), torch.zeros(4), torch.zeros(1, dtype=torch.int64)]
    x, weight = torch.ones(3, 6), torch.ones(5, 6)
    codes, scale = torch.zeros(5, 6, dtype=torch.uint8), torch.ones(1)

    def run(*held):
        torch.ops.plimsoll.scaled_linear(x, weight, None, state=state, held=held, recipe='{"name": "fp8"}', save_input=True)

    with pytest.raises(RuntimeError, match="codes of uint8.* on cpu, got .* on meta"):
        run(codes.to("meta"), scale, None, None, None, None)
    with pytest.raises(RuntimeError, match=r"a scale \[1, 1\] of Float, contiguous, on cpu"):
        run(codes, scale.to("meta"), None, None, None, None)
