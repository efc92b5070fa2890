"""DelayedScaling with functions in it."""

import functools
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common.recipe import DelayedScaling
from plimsoll.common.recipe_functions import number_of
from rounding import approx


def ones(amax):
    return torch.full((2, 4), float(amax), requires_grad=True)


def run(layer, amaxes, rule):
    for amax in amaxes:
        with te.fp8_autocast(fp8_recipe=rule):
            output = layer(ones(amax))
        output.backward(torch.full_like(output, amax))
    return {name: buffer.clone() for name, buffer in layer.named_buffers()}


def states(rule, like):
    results = []
    for one in (rule, like):
        torch.manual_seed(0)
        results.append(run(te.Linear(4, 3), (1.0, 5.0, 2.0, 3.0), one))
    return results


def assert_same(rule, like):
    ours, expected = states(rule, like)
    for name, value in expected.items():
        assert torch.equal(ours[name], value), name


def test_functions_that_do_what_the_names_do():
    newest = DelayedScaling(amax_history_len=3, amax_compute_algo=lambda history: history[0])
    assert_same(newest, DelayedScaling(amax_history_len=3, amax_compute_algo="most_recent"))
    largest = DelayedScaling(amax_history_len=3, amax_compute_algo=lambda history: torch.max(history, dim=0).values)
    assert_same(largest, DelayedScaling(amax_history_len=3))


def test_a_function_of_the_history():
    seen = []

    def mean(history):
        seen.append(history.shape)
        return history.mean()

    layer: Any = te.Linear(4, 3)
    run(layer, (1.0, 5.0), DelayedScaling(amax_history_len=3, amax_compute_algo=mean))
    assert set(seen) == {(3, 1)}
    # Roundings: of the sum, the third, its quotient with 448 and the reciprocal.
    assert layer.input_scale.item() == approx((1 + 5) / 3 / 448, 4)


def test_a_scale_as_transformer_engine_writes_it():
    seen = []

    def power_of_two(amax, scale, fp8_max, recipe):
        seen.append((amax.shape, scale.shape, float(fp8_max), recipe.margin))
        return torch.exp2(torch.floor(torch.log2(fp8_max / amax)) - recipe.margin)

    rule = DelayedScaling(margin=2, scaling_factor_compute_algo=power_of_two)
    assert_same(rule, DelayedScaling(margin=2, power_of_two=True))
    assert set(seen) == {((1,), (1,), 448.0, 2), ((1,), (1,), 57344.0, 2)}


def test_a_fourth_argument_called_margin_is_the_margin():
    def fixed(amax, scale, max_finite, margin):
        return 2.0**-margin

    layer: Any = te.Linear(4, 3)
    run(layer, (1.0,), DelayedScaling(margin=3, scaling_factor_compute_algo=fixed))
    assert layer.input_scale.item() == layer.grad_output_scale.item() == 8


def test_recipes_of_one_function_and_other_fields_are_apart():
    def fixed(amax, scale, fp8_max, recipe):
        return torch.tensor(2.0**-recipe.margin)

    layer: Any = te.Linear(4, 3)
    for margin in (1, 4, 2):
        run(layer, (1.0,), DelayedScaling(margin=margin, scaling_factor_compute_algo=fixed))
        assert layer.input_scale.item() == 2.0**margin


class Fixed(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, amax, scale, fp8_max, recipe):
        return self.scale


def test_functions_that_print_alike_are_apart():
    def fixed(scale, amax, old, fp8_max, recipe):
        return scale

    layer: Any = te.Linear(4, 3)
    for make in (lambda scale: functools.partial(fixed, torch.tensor(scale)), Fixed, lambda scale: Fixed(scale).forward):
        for scale in (0.12341, 0.12342):
            run(layer, (1.0,), DelayedScaling(scaling_factor_compute_algo=make(scale)))
            assert layer.input_scale.item() == approx(1 / scale, 2)


def test_a_recipe_with_a_function_has_one_number():
    fixed = Fixed(2.0)
    first, second = (DelayedScaling(scaling_factor_compute_algo=fixed.forward) for _ in range(2))
    assert number_of(first) == number_of(second) != number_of(DelayedScaling(amax_compute_algo=fixed.forward))


def test_what_a_function_raises_comes_through():
    def fails(history):
        raise KeyError("not today")

    layer = te.Linear(4, 3)
    with pytest.raises(KeyError, match="not today"):
        run(layer, (1.0,), DelayedScaling(amax_compute_algo=fails))


@pytest.mark.parametrize(
    "rule,message",
    [
        (DelayedScaling(amax_compute_algo=lambda history: float("nan")), "amax_compute_algo: expected a finite amax"),
        (DelayedScaling(scaling_factor_compute_algo=lambda a, s, m, r: 0.0), "expected a finite inv_scale > 0"),
    ],
)
def test_numbers_out_of_range_are_named(rule, message):
    with pytest.raises(ValueError, match=message):
        run(te.Linear(4, 3), (1.0,), rule)


@pytest.mark.parametrize("arguments", [{"amax_compute_algo": "median"}, {"scaling_factor_compute_algo": "max"}])
def test_names_that_are_no_function_are_refused(arguments):
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        DelayedScaling(**arguments)
