"""Moves of modules whose weights are FP8 codes: to other dtypes and devices, and some that fail."""

from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from quantized_modules import MODULES, is_parameter, marked, quantized, weights_of


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
