"""The border to C++: what an operator is told beside its operands has a name, so that nothing can be swapped, misspelt or left
out without an error."""

import hostile_calls
import hostile_methods
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.autoscale.policy import METHODS
from plimsoll.autoscale.session import new_session

ops = torch.ops.plimsoll
SESSION = dict(
    dtype=torch.float16,
    rounding="remainder",
    method="autoscale",
    exponent=0,
    product_values=None,
    product_gradients=None,
    counts_range=False,
)


def schemas():
    names = hostile_calls.registered() | hostile_calls.IN_PYTHON
    return {name: getattr(ops, name).default._schema for name in sorted(names)}


@pytest.mark.parametrize("name", schemas())
def test_nothing_that_could_be_swapped_is_positional(name):
    positional = [argument for argument in schemas()[name].arguments if not argument.kwarg_only]
    assert len(positional) <= 5
    types = [str(argument.real_type).removeprefix("Optional[").rstrip("]") for argument in positional]
    for plain in ("bool", "int", "float"):
        assert types.count(plain) <= (1 if len(types) == 1 or plain != "bool" else 0), f"{name}: {types}"


@pytest.mark.parametrize("name", [name for name, schema in schemas().items() if schema.arguments])
def test_an_option_without_a_name_in_the_schema_is_an_error(name):
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'nonsense'|missing value for argument|expected at most"):
        getattr(ops, name)(nonsense=1)


def test_options_are_not_taken_by_place():
    layer = te.Linear(6, 5)
    with pytest.raises(RuntimeError, match="takes 3 positional"):
        ops.scaled_linear(torch.ones(2, 6), layer.weight, None, layer._state(), [], '"fp8"', True, False)
    with pytest.raises(RuntimeError, match="takes 0 positional"):
        ops.autoscale_session(*SESSION.values())


def test_a_misspelt_option_is_named():
    layer = te.Linear(6, 5)
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'save_inputs'"):
        ops.scaled_linear(torch.ones(2, 6), layer.weight, None, state=layer._state(), held=[], recipe='"fp8"', save_inputs=True)
    options = {**SESSION, "count_range": SESSION["counts_range"]}
    del options["counts_range"]
    with pytest.raises(RuntimeError, match="missing value for argument 'counts_range'"):
        ops.autoscale_session(**options)


@pytest.mark.parametrize("left_out", SESSION)
def test_an_option_that_is_left_out_is_named(left_out):
    with pytest.raises(RuntimeError, match=f"missing value for argument '{left_out}'"):
        ops.autoscale_session(**{name: value for name, value in SESSION.items() if name != left_out})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(rounding=2), "'rounding' but instead found type 'int'"),
        (dict(method=0), "'method' but instead found type 'int'"),
        (dict(counts_range="no"), "'counts_range' but instead found type 'str'"),
        (dict(exponent=0.5), "'exponent' but instead found type 'float'"),
        (dict(product_values=torch.float8_e4m3fn), "'product_values' but instead found type 'dtype'"),
    ],
)
def test_an_option_of_another_type_is_named(wrong, message):
    with pytest.raises(RuntimeError, match=message):
        ops.autoscale_session(**{**SESSION, **wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ranks: ops.autoscale_session(**{**SESSION, "rounding": "remainders"}), "rounding: expected remainder"),
        (
            lambda ranks: ops.gradient_reducer(ranks, bucket_elements=64, reduce_dtype=torch.float32, compression="fp9"),
            "compression: expected fp8",
        ),
        (lambda ranks: torch.classes.plimsoll.HookedBuckets("fp9", ranks, ["w"], [3]), "compression: expected fp8"),
        (lambda ranks: torch.classes.plimsoll.T5Model("nowhere", "fp33", False), "dtype: expected fp32"),
    ],
)
def test_a_name_that_there_is_not_is_an_error_with_the_nearest(make, message):
    with pytest.raises(ValueError, match=message):
        make(torch.classes.plimsoll.Ranks(""))


@pytest.mark.parametrize(
    ("units", "borrowed", "message"),
    [
        (0, [], "expected one unit or more, got none"),
        (1, [], "expected the units that each of 1 borrows from, got 0"),
        (1, [[1]], "expected a unit below 1, got 1"),
        (1, [[-1]], "expected a unit below 1, got -1"),
    ],
)
def test_a_schedule_is_of_units_that_there_are(units, borrowed, message):
    ranks = torch.classes.plimsoll.Ranks("")
    with pytest.raises(ValueError, match=f"ShardSchedule: {message}"):
        torch.classes.plimsoll.ShardSchedule([hostile_methods.new_unit(ranks) for _ in range(units)], borrowed)


def test_a_session_has_the_options_that_it_was_given():
    kept = new_session(torch.bfloat16, rounding="nearest", counts_range=True)
    tensor = ops.autoscale_as_scaled(torch.ones(4), kept)
    assert ops.autoscale_data(tensor).dtype == torch.bfloat16
    assert kept.range()[0] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dtype=torch.float64), "expected data in Half, BFloat16 or Float, got Double"),
        (dict(rounding="up"), "rounding: expected .* got 'up'"),
        (dict(method="units"), "method: expected unit, .* got 'units'"),
        (dict(method="fixed", exponent=2**40), "expected an exponent of at most 65536, got 1099511627776"),
        (dict(product_values="fp4", product_gradients="nvfp4"), "product_values: expected nvfp4, .* got 'fp4'"),
        (dict(product_values="nvfp4", product_gradients="fp16"), "product_gradients: expected .* got 'fp16'"),
        (dict(product_values="e4m3"), "expected a format of products for both values and gradients, got e4m3 and data"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ops.autoscale_session(**{**SESSION, **options})


def test_the_names_of_methods_and_roundings_are_those_of_the_library():
    for method in METHODS:
        ops.autoscale_session(**{**SESSION, "method": method})
    for rounding in ("nearest", "stochastic", "remainder"):
        ops.autoscale_session(**{**SESSION, "rounding": rounding})
