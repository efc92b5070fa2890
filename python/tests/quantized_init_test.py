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

MODULES = {
    "Linear": lambda: te.Linear(32, 48),
    "LayerNormLinear": lambda: te.LayerNormLinear(32, 48),
    "LayerNormMLP": lambda: te.LayerNormMLP(32, 48, activation="swiglu"),
    "TransformerLayer": lambda: te.TransformerLayer(32, 48, 2, hidden_dropout=0.0, attention_dropout=0.0),
}


def quantized(make, seed=4, **keywords):
    torch.manual_seed(seed)
    with te.fp8_model_init(**keywords):
        return make()


def weights_of(module):
    return {name: p for name, p in module.named_parameters() if isinstance(p, QuantizedTensor)}


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


def is_parameter(weight) -> bool:
    return isinstance(weight, QuantizedTensor) and isinstance(weight, torch.nn.Parameter)


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


def test_another_dtype_keeps_the_codes():
    module: Any = quantized(MODULES["Linear"])
    codes = module.weight.codes.clone()
    module.to(torch.bfloat16)
    assert is_parameter(module.weight) and module.weight.dtype == torch.bfloat16
    assert torch.equal(module.weight.codes, codes) and module.weight.requires_grad
    with te.fp8_autocast():
        module(torch.randn(2, 32, dtype=torch.bfloat16)).sum().backward()
    assert module.weight.grad.dtype == torch.bfloat16
    assert module.float().weight.grad.dtype == torch.float32
    assert torch.equal(module.weight.codes, codes) and module.to("meta").weight.is_meta


def marked():
    """A module whose weight carries what callers hang on parameters, and its optimizer after a step."""
    module = quantized(MODULES["Linear"], preserve_high_precision_init_val=True)
    module.weight.main_grad, module.weight.partition_dim = torch.zeros(48, 32), 1
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.randn(2, 32)).sum().backward()
    optimizer.step()
    return module, optimizer


MOVES = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "float": lambda module: module.float(),
    "type": lambda module: module.type(torch.bfloat16),
    "to dtype": lambda module: module.to(torch.bfloat16),
    "to dtype and back": lambda module: module.half().float(),
    "to device and dtype": lambda module: module.to("cpu", torch.float16),
    "cpu": lambda module: module.cpu(),
    "to memory format": lambda module: module.to(memory_format=torch.channels_last),
    "requires_grad_": lambda module: module.requires_grad_(False).requires_grad_(True),
    "share_memory": lambda module: module.share_memory(),
    "train and eval": lambda module: module.eval().train(),
    "in a module": lambda module: torch.nn.Sequential(module).half(),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_parameter_stays_the_object_that_it_is(move):
    module, optimizer = marked()
    weight, gradient = module.weight, module.weight.grad
    codes, scale = weight.codes.clone(), weight.scale.clone()
    kept = weight.get_high_precision_init_val().clone()
    MOVES[move](module)
    assert module.weight is weight and is_parameter(weight)
    assert weight.dtype == module.bias.dtype == weight.grad.dtype and weight.grad is gradient
    assert torch.equal(weight.codes, codes) and torch.equal(weight.scale, scale)
    assert torch.equal(weight.get_high_precision_init_val(), kept)
    assert weight.main_grad.shape == (48, 32) and weight.partition_dim == 1
    assert weight.requires_grad and weight.is_leaf and weight in optimizer.state
    weight.grad = None
    module(torch.randn(2, 32, dtype=weight.dtype)).sum().backward()
    assert weight.grad.dtype == weight.dtype
    optimizer.step()
    assert not torch.equal(weight.codes, codes)  # the optimizer writes to the parameter that the module reads


@pytest.mark.parametrize("rule", [None, recipe.MXFP8BlockScaling()])
def test_a_move_that_fails_leaves_the_codes(rule):
    module = quantized(MODULES["LayerNormMLP"], **({} if rule is None else {"recipe": rule}))
    module(torch.randn(2, 32)).sum().backward()
    weights = weights_of(module)
    before = {name: [weight, *weight.held()[:4]] for name, weight in weights.items()}
    calls = failing = 0

    def moved(tensor):
        nonlocal calls
        calls += 1
        if calls == failing:
            raise RuntimeError("no such device")
        return tensor.clone()

    module._apply(moved)
    count = calls
    assert count > 8
    for place in range(1, count + 1):
        calls, failing = 0, place
        parts = {name: weight.held()[:4] for name, weight in weights.items()}
        with pytest.raises(RuntimeError, match="no such device"):
            module._apply(moved)
        assert list(module.state_dict()) and all(buffer.device.type == "cpu" for buffer in module.buffers())
        for name, weight in weights.items():
            assert module.get_parameter(name) is weight is before[name][0]
            kept = {part is other for part, other in zip(weight.held()[:4], parts[name], strict=True) if other is not None}
            assert len(kept) == 1, "all parts have moved, or none"
            assert all(now is None or torch.equal(now, old) for now, old in zip(weight.held()[:4], before[name][1:], strict=True))


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
