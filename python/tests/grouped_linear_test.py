"""GroupedLinear has the bits of a Linear for each group; moe_permute and moe_unpermute are inverse to one another."""

import contextlib

import numpy
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from rounding import gamma
from torch.nn import functional

IN, OUT, SPLITS = 24, 40, [3, 0, 5, 1]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(19)


def scope(name):
    return te.fp8_autocast(fp8_recipe=oracle.RECIPES[name]) if name else contextlib.nullcontext()


def grouped_and_apart(**options):
    grouped = te.GroupedLinear(len(SPLITS), IN, OUT, **options)
    apart = [te.Linear(IN, OUT, **options) for _ in SPLITS]
    for number, linear in enumerate(apart):
        own = {"weight": grouped.get_parameter(f"weight{number}").data}
        if options.get("bias", True):
            torch.nn.init.normal_(grouped.get_parameter(f"bias{number}"))
            own["bias"] = grouped.get_parameter(f"bias{number}").data
        linear.load_state_dict(own, strict=False)
    return grouped, apart


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", [None, *oracle.RECIPES])
def test_each_group_has_the_bits_of_a_linear_of_its_own(name, bias):
    grouped, apart = grouped_and_apart(bias=bias)
    for _ in range(3):  # later steps use the scales of earlier ones
        x = torch.randn(sum(SPLITS), IN)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        with scope(name):
            output = grouped(ours, SPLITS)
            parts = torch.cat([linear(part) for linear, part in zip(apart, theirs.split(SPLITS), strict=True)])
        assert torch.equal(output, parts)
        gradient = torch.randn_like(output)
        output.backward(gradient)
        parts.backward(gradient)
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    for number, linear in enumerate(apart):
        assert torch.equal(grouped.get_parameter(f"weight{number}").grad, linear.weight.grad)
        for name_of_buffer, buffer in linear.named_buffers():
            assert torch.equal(grouped.get_buffer(f"gemm{number}_{name_of_buffer}"), buffer), name_of_buffer


def test_the_shape_of_the_input_comes_back_and_biases_apart():
    grouped, apart = grouped_and_apart(return_bias=True)
    x = torch.randn(3, 3, IN)
    output, biases = grouped(x, SPLITS)
    assert output.shape == (3, 3, OUT)
    assert [torch.equal(bias, linear.bias) for bias, linear in zip(biases, apart, strict=True)] == [True] * len(SPLITS)
    whole = torch.cat(
        [functional.linear(part, linear.weight) for part, linear in zip(x.reshape(-1, IN).split(SPLITS), apart, strict=True)]
    )
    assert (output.reshape(-1, OUT) - whole).norm() <= gamma(IN) * whole.norm()


def test_main_grads_are_those_of_its_weights():
    grouped, apart = grouped_and_apart(fuse_wgrad_accumulation=True, bias=False)
    for number, linear in enumerate(apart):
        for weight in (grouped.get_parameter(f"weight{number}"), linear.weight):
            weight.main_grad = torch.ones_like(weight)
    x = torch.randn(sum(SPLITS), IN)
    grouped(x, SPLITS).square().sum().backward()
    sum(linear(part).square().sum() for linear, part in zip(apart, x.split(SPLITS), strict=True)).backward()
    for number, linear in enumerate(apart):
        assert torch.equal(grouped.get_parameter(f"weight{number}").main_grad, linear.weight.main_grad)


@pytest.mark.parametrize("kind", [tuple, torch.tensor, numpy.array, iter])
def test_splits_come_in_any_kind_of_list(kind):
    grouped, _ = grouped_and_apart()
    x = torch.randn(sum(SPLITS), IN)
    assert torch.equal(grouped(x, kind(SPLITS)), grouped(x, SPLITS))


@pytest.mark.parametrize("splits", [[9], [4, 4, 4, -3], [3, 0, 5, 2]])
def test_splits_that_do_not_fit_are_an_error(splits):
    with pytest.raises(ValueError, match="m_splits of 4 numbers >= 0 whose sum is 9 rows"):
        te.GroupedLinear(4, IN, OUT)(torch.randn(9, IN), splits)


def routing(map_type, tokens=13, experts=5, choices=2):
    scores = torch.rand(tokens, experts)
    chosen = scores.topk(choices).indices
    mask = torch.zeros(tokens, experts, dtype=torch.bool).scatter_(1, chosen, True)
    return (mask, mask) if map_type == "mask" else (chosen, mask)


@pytest.mark.parametrize("map_type", ["mask", "index"])
def test_rows_stand_by_expert_and_then_by_token(map_type):
    routing_map, mask = routing(map_type)
    x = torch.randn(13, 7)
    rows, row_id_map = te.moe_permute(x, routing_map, map_type=map_type)
    expected = torch.cat([x[mask[:, expert]] for expert in range(5)])
    assert torch.equal(rows, expected)
    assert sorted(row_id_map[row_id_map >= 0].tolist()) == list(range(26))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("map_type", ["mask", "index"])
def test_unpermute_sums_each_tokens_rows(map_type, weighted):
    routing_map, _ = routing(map_type)
    x = torch.randn(13, 7, requires_grad=True)
    probabilities = torch.rand(routing_map.shape, requires_grad=True) if weighted else None
    rows, row_id_map = te.moe_permute(x, routing_map, map_type=map_type)
    output = te.moe_unpermute(3 * rows, row_id_map, probabilities, x.shape, map_type)
    chosen = routing_map.double() if map_type == "mask" else torch.ones(13, 2, dtype=torch.double)
    factor = (chosen if probabilities is None else chosen * probabilities.detach().double()).sum(1, keepdim=True)
    exact = 3 * factor * x.detach().double()
    # A product by 3, one by the factor and a sum of two: four roundings of FP32 at most.
    assert ((output.double() - exact).abs() <= 4 * 2.0**-24 * 3 * factor * x.detach().double().abs()).all()
    output.sum().backward()
    gradient = (3 * factor).expand(13, 7)
    assert x.grad is not None
    assert ((x.grad.double() - gradient).abs() <= 4 * 2.0**-24 * gradient).all()
    if probabilities is not None:
        assert probabilities.grad is not None
        exact = chosen * 3 * x.detach().double().sum(1, keepdim=True)
        bound = 16 * 2.0**-24 * 3 * x.detach().double().abs().sum(1, keepdim=True)  # a sum of seven products
        assert ((probabilities.grad.double() - exact).abs() <= bound).all()


def test_rows_after_num_out_tokens_are_dropped():
    routing_map, _ = routing("index")
    x = torch.randn(13, 7)
    rows, row_id_map = te.moe_permute(x, routing_map, num_out_tokens=20, map_type="index")
    assert rows.shape == (20, 7) and int((row_id_map < 0).sum()) == 6
    counts = (row_id_map >= 0).sum(1, keepdim=True)
    assert torch.equal(te.moe_unpermute(rows, row_id_map, map_type="index"), x * counts)


def test_no_tokens_and_no_choices_give_empty_and_zero_rows():
    empty, ids = te.moe_permute(torch.zeros(0, 7), torch.zeros(0, 5, dtype=torch.bool))
    assert empty.shape == (0, 7) and te.moe_unpermute(empty, ids).shape == (0, 7)
    x, probabilities = torch.zeros(0, 7, requires_grad=True), torch.zeros(0, 5, requires_grad=True)
    rows, ids = te.moe_permute(x, torch.zeros(0, 5, dtype=torch.bool))
    te.moe_unpermute(rows, ids, probabilities).sum().backward()
    assert x.grad is not None and probabilities.grad is not None
    x, probabilities = torch.ones(3, 7, requires_grad=True), torch.full((3, 5), torch.inf, requires_grad=True)
    rows, ids = te.moe_permute(x, torch.zeros(3, 5, dtype=torch.bool))
    te.moe_unpermute(rows, ids, probabilities).sum().backward()
    for given in (x, probabilities):
        assert given.grad is not None and torch.equal(given.grad, torch.zeros_like(given))
    none, ids = te.moe_permute(torch.ones(3, 7), torch.zeros(3, 5, dtype=torch.bool))
    assert none.shape == (0, 7) and torch.equal(te.moe_unpermute(none, ids), torch.zeros(3, 7))


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: te.moe_permute(torch.zeros(3, 7), torch.zeros(4, 5)), "expected inp .tokens, hidden."),
        (lambda: te.moe_permute(torch.zeros(3, 7), torch.zeros(3, 5), map_type="list"), "map_type one of 'mask', 'index'"),
        (lambda: te.moe_permute(torch.zeros(1, 7), torch.tensor([[-1]]), map_type="index"), "experts >= 0"),
        (lambda: te.moe_unpermute(torch.zeros(2, 7), torch.tensor([[0], [1]]), restore_shape=(3, 7)), "restore_shape"),
        (lambda: te.moe_unpermute(torch.zeros(2, 7), torch.tensor([[0], [1]]), torch.zeros(2, 2)), "merging_probs"),
        (lambda: te.moe_unpermute(torch.zeros(2, 7), torch.tensor([[0], [2]])), "row_id_map of rows below 2, got 2"),
        (lambda: te.moe_unpermute(torch.zeros(2, 7), torch.zeros(2, 1)), "row_id_map int64 .tokens.* of torch.float32"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
