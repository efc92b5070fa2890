"""NVFP4BlockScaling and MXFP4BlockScaling: products of the codes of the contract, the draw of their random numbers, refusals."""

import functools
import itertools
from typing import Any

import four_bit_oracle
import numpy as np
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from linear_test import SHAPES, case, run
from plimsoll.common import recipe

MS_EDEN = functools.partial(recipe.NVFP4BlockScaling, ms_eden=True)


def test_the_oracles_codes_are_the_nearest():
    every = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = np.linspace(-6, 6, 4801)
    nearest = four_bit_oracle.e2m1(x)
    assert (np.abs(nearest - x) <= np.abs(np.abs(x)[:, None] - every).min(1) + 1e-12).all()
    ties = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, 7: 6}
    assert (four_bit_oracle.e2m1(np.array(list(ties))) == list(ties.values())).all()
    assert four_bit_oracle.philox_word(0, 0, 0) == 0x6627E8D5  # known answer of Philox4x32-10, all zero


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", four_bit_oracle.RECIPES)
def test_output_and_gradients_are_those_of_the_oracle(name, shape):
    layer, x, grad = case(True, *shape)
    rule = four_bit_oracle.RECIPES[name]
    torch.manual_seed(11)
    ours = run(layer, x, grad, rule)
    torch.manual_seed(11)
    seed = four_bit_oracle.drawn_seed()
    expected = four_bit_oracle.linear(rule, x, layer.weight.detach(), layer.bias.detach(), grad, seed)
    assert ours.keys() == expected.keys()
    for what, value in ours.items():
        oracle.assert_within(value, expected[what], f"{name} {shape} {what}")


@pytest.mark.parametrize("override", [*itertools.product([False, True], repeat=3)])
@pytest.mark.parametrize("kind", [recipe.NVFP4BlockScaling, MS_EDEN, recipe.MXFP4BlockScaling])
def test_each_product_can_run_in_high_precision(kind, override):
    layer, x, grad = case(True, 37, 65, 43)
    rule = kind(override_linear_precision=override)
    torch.manual_seed(12)
    ours = run(layer, x, grad, rule)
    torch.manual_seed(12)
    seed = four_bit_oracle.drawn_seed()
    expected = four_bit_oracle.linear(rule, x, layer.weight.detach(), layer.bias.detach(), grad, seed)
    for what, value in ours.items():
        oracle.assert_within(value, expected[what], f"{rule} {what}")


def test_fused_modules_have_the_bits_of_their_parts():
    torch.manual_seed(3)
    fused: Any = te.LayerNormLinear(64, 48)
    norm, linear = te.LayerNorm(64), te.Linear(64, 48)
    linear.load_state_dict({name: value for name, value in fused.state_dict().items() if not name.startswith("layer_norm")})
    x, grad = torch.randn(40, 64), torch.randn(40, 48)
    for rule in four_bit_oracle.RECIPES.values():
        results = []
        for parts in ([fused], [norm, linear]):
            torch.manual_seed(4)
            leaf = x.clone().requires_grad_()
            with te.fp8_autocast(fp8_recipe=rule):
                output = torch.nn.Sequential(*parts)(leaf)
            parts[-1].zero_grad()
            output.backward(grad)
            results.append((output, leaf.grad, parts[-1].weight.grad))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("ms_eden", [False, True])
def test_a_seed_gives_bits_and_inference_draws_nothing(ms_eden):
    layer, x, grad = case(True, 33, 64, 48)
    rule = recipe.NVFP4BlockScaling(ms_eden=ms_eden)

    def gradient(seed):
        torch.manual_seed(seed)
        layer.zero_grad()
        return run(layer, x, grad, rule)["weight"].clone()

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(1), gradient(2))
    before = torch.get_rng_state()
    with torch.no_grad(), te.fp8_autocast(fp8_recipe=rule):
        layer(x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("rule", [recipe.NVFP4BlockScaling(), MS_EDEN(), recipe.MXFP4BlockScaling()])
def test_what_has_no_four_bits_is_refused(rule):
    with pytest.raises(ValueError, match="expected a recipe of eight bits or more, got"), te.quantized_model_init(recipe=rule):
        te.Linear(32, 16)
    with te.fp8_model_init():
        held: Any = te.Linear(32, 16)
    with pytest.raises(RuntimeError, match="expected a weight as values under recipe"), te.fp8_autocast(fp8_recipe=rule):
        held(torch.randn(4, 32))
