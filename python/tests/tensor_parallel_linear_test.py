"""Linear layers that ranks share, against the oracle."""

from typing import Any

import oracle
import plimsoll.pytorch as te
import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.common import recipe
from tensor_parallel_models import ALL_RECIPES, part, rank_of, scope, seeded, sum_over_tokens


def linear_parts(group, rule, mode, x, weight, bias, grad):
    """For each rank what the oracle says of its part; {name: (value, bound)}."""
    size, by_rows = dist.get_world_size(group), mode == "row"
    xs = x.flatten(0, -2).chunk(size, 1) if by_rows else [x.flatten(0, -2)] * size
    grads = [grad.flatten(0, -2)] * size if by_rows else grad.flatten(0, -2).chunk(size, 1)
    weights = weight.chunk(size, 1 if by_rows else 0)
    biases = [None] * size if by_rows or bias is None else bias.chunk(size)
    return [oracle.linear(rule, *operands) for operands in zip(xs, weights, biases, grads, strict=False)]


def summed(parts, name, extra=None):
    """Over ranks, in FP32 and in any order."""
    values, bounds = zip(*(each[name] for each in parts), strict=False)
    total = sum(values) if extra is None else sum(values) + extra.double()
    terms = sum(value.abs() for value in values) + (0 if extra is None else extra.abs())
    return total, sum(bounds) + len(parts) * 2.0**-23 * terms


def check_linear(group, mode, sequence, rule, shape, out_features):
    torch.manual_seed(1)
    by_rows, in_features = mode == "row", shape[-1]
    whole: Any = te.Linear(in_features, out_features)
    layer = seeded(lambda: te.Linear(in_features, out_features, parallel_mode=mode, tp_group=group, sequence_parallel=sequence))
    with torch.no_grad():
        whole.bias.normal_()
        layer.weight.copy_(part(group, whole.weight, 1 if by_rows else 0))
        layer.bias.copy_(whole.bias if by_rows else part(group, whole.bias, 0))
    x, grad = torch.randn(shape), torch.randn(*shape[:-1], out_features)
    mine = part(group, x, -1) if by_rows else part(group, x, 0) if sequence else x
    mine = mine.clone().requires_grad_()
    with scope(group, rule):
        output = layer(mine)
    output.backward(grad if by_rows and not sequence else part(group, grad, 0 if by_rows else -1))
    sum_over_tokens(group, layer)

    parts, own = linear_parts(group, rule, mode, x, whole.weight.detach(), whole.bias.detach(), grad), rank_of(group)
    outputs = summed(parts, "output", whole.bias.detach()) if by_rows else parts[own]["output"]
    inputs = parts[own]["input"] if by_rows else summed(parts, "input")

    def of_tokens(value_and_bound, feature_split):
        value, bound = (tensor.reshape(*shape[:-1], tensor.shape[-1]) for tensor in value_and_bound)
        return [part(group, tensor, 0) for tensor in (value, bound)] if sequence and not feature_split else (value, bound)

    oracle.assert_within(output.detach(), of_tokens(outputs, not by_rows), "output")
    oracle.assert_within(mine.grad, of_tokens(inputs, by_rows), "gradient of the input")
    oracle.assert_within(layer.weight.grad, parts[own]["weight"], "gradient of the weight")
    tokens, bias_grad = grad.flatten(0, -2), layer.bias.grad
    exact = tokens.double().sum(0), (len(tokens) + 8) * 2.0**-24 * tokens.double().abs().sum(0)
    oracle.assert_within(bias_grad, exact if by_rows else [part(group, t, 0) for t in exact], "gradient of the bias")


def linears(group, shapes):
    for mode in ("column", "row"):
        for sequence in (False, True):
            for name, rule in ALL_RECIPES.items():
                for shape, out_features in shapes:
                    try:
                        check_linear(group, mode, sequence, rule, shape, out_features)
                    except Exception as error:
                        raise AssertionError(f"{mode}, sequence_parallel={sequence}, {name}, {shape}") from error


@ranks.case(2)
def linear_is_within_the_bound_of_the_oracle_under_every_recipe(group):
    # Tokens of a rank: 64, so blocks of 32 rows travel as codes and those of 128 do not; 15.
    linears(group, [((16, 8, 96), 160), ((6, 5, 34), 18)])


@ranks.case(2)
def no_tokens_at_all_give_no_output_and_zero_gradients(group):
    for mode in ("column", "row"):
        for rule in ALL_RECIPES.values():
            layer: Any = te.Linear(32, 32, parallel_mode=mode, tp_group=group, sequence_parallel=True)
            x = torch.zeros(0, 3, 32 if mode == "column" else 16, requires_grad=True)
            with scope(group, rule):
                output = layer(x)
            output.sum().backward()
            assert output.shape == (0, 3, 16 if mode == "column" else 32) and x.grad is not None and x.grad.shape == x.shape
            assert not layer.weight.grad.any()


@ranks.case(3)
def linear_is_within_the_bound_on_three_ranks(group):
    linears(group, [((9, 2, 51), 33)])


@ranks.case(2)
def bf16_sums_round_once(group):
    """Parts of ranks are added up in FP32."""
    layer = te.Linear(64, 32, parallel_mode="row", tp_group=group, params_dtype=torch.bfloat16, bias=False)
    x = torch.randn(6, 3, 32).bfloat16()
    output = layer(x)
    with torch.no_grad():
        parts = [
            torch.nn.functional.linear(a.double(), b.double()).float().bfloat16()
            for a, b in ranks.gathered(group, (x, layer.weight.detach()))
        ]
    # A part may be the neighbour in bf16 where its FP32 sum is near the middle; the sum of parts rounds once.
    exact, terms = torch.stack(parts).double().sum(0), torch.stack(parts).double().abs().sum(0)
    assert bool(((output.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-7 * terms).all())
    assert ((output.double() - exact).abs() <= 2.0**-8 * exact.abs()).double().mean() > 0.9
    ranks.assert_same_bits(group, {"output": output.detach().float()})


@ranks.case(2)
def four_bits_are_refused(group):
    for rule in (recipe.NVFP4BlockScaling(), recipe.MXFP4BlockScaling()):
        for mode, features in (("column", 64), ("row", 32)):
            layer = te.Linear(64, 32, parallel_mode=mode, tp_group=group, bias=False)
            refused = pytest.raises(RuntimeError, match="eight bits or more for a layer that the ranks of tp_group share")
            with refused, te.fp8_autocast(fp8_recipe=rule):
                layer(torch.randn(6, features))


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
