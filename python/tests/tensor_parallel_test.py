"""Modules that ranks share, against one rank's and against the oracle."""

import functools

import oracle
import plimsoll.pytorch as te
import pytest
import ranks
import torch
from plimsoll.common import recipe
from tensor_parallel_models import ALL_RECIPES, MODULES, both, part, rank_of, scope, seeded
from torch.profiler import profile


def distance(compared, exact, which):
    """Distance of all gradients together, relative to the exact ones: some are zero but for rounding. which: 0 this rank's, 1 one
    rank's."""
    values = [
        torch.cat([pairs[what][place].flatten() for what in exact]).double() for pairs, place in ((compared, which), (exact, 1))
    ]
    return ((values[0] - values[1]).norm() / values[1].norm()).item()


def modules_equal_one_ranks(group):
    for name in MODULES:
        for sequence in (False, True):
            largest = max(pair[1].double().norm() for pair in both(group, name, sequence, None).values())
            for what, (mine, theirs) in both(group, name, sequence, None).items():
                assert mine.shape == theirs.shape, f"{name}: {what}"
                # Each is within 1e-6 of exact (docs/python.md), or, where terms cancel, a rounding of the largest.
                bound = 2e-6 * theirs.double().norm() + 2.0**-23 * largest
                error = (mine.double() - theirs.double()).norm()
                assert error <= bound, f"{name}, sequence_parallel={sequence}, {what}: {error:.2e}, bound {bound:.2e}"


@ranks.case(2)
def modules_equal_one_ranks_on_two(group):
    modules_equal_one_ranks(group)


@ranks.case(4)
def modules_equal_one_ranks_on_four(group):
    modules_equal_one_ranks(group)


@ranks.case(2)
def norms_of_queries_and_keys_have_one_weight_and_a_marked_gradient_of_each_ranks_heads(group):
    for sequence in (False, True):
        options = {"set_parallel_mode": True, "tp_group": group, "sequence_parallel": sequence, "qk_norm_type": "LayerNorm"}
        layer = seeded(functools.partial(te.MultiheadAttention, 32, 4, **options), rank_of(group))
        norms = {name: p for name, p in layer.named_parameters() if "_norm." in name}
        assert len(norms) == 4 and all(parameter.sequence_parallel for parameter in norms.values())
        ranks.assert_same_bits(group, norms)
        torch.manual_seed(1)
        layer(torch.randn(4, 2, 32)).square().sum().backward()
        own = layer.q_norm.weight.grad
        theirs = ranks.gathered(group, own)[1 - rank_of(group)]
        assert own.abs().max() > 0 and not torch.equal(own, theirs)  # of its heads alone
    alone = te.MultiheadAttention(32, 4, qk_norm_type="LayerNorm")
    assert not any(getattr(parameter, "sequence_parallel", False) for parameter in alone.parameters())


@ranks.case(2)
def modules_are_as_near_to_fp32_as_one_ranks_under_every_recipe(group):
    for name in ("LayerNormMLP swiglu", "TransformerLayer"):
        for rule_name, rule in oracle.RECIPES.items():
            for sequence in (False, True):
                compared, exact = both(group, name, sequence, rule), both(group, name, sequence, None)
                mine, alone = distance(compared, exact, 0), distance(compared, exact, 1)
                # E4M3 has three bits of mantissa: both are far from exact, by as much.
                assert 2.0**-10 < mine <= 1.25 * alone, f"{name}, {rule_name}, sequence_parallel={sequence}: {mine}, {alone}"


@ranks.case(2)
def delayed_scales_become_those_of_the_whole_and_codes_with_them(group):
    """From the second step on, the output of a column-parallel layer has the bits of one rank's."""
    for sequence in (False, True):
        whole = seeded(lambda: te.Linear(32, 48))
        options = {"parallel_mode": "column", "tp_group": group, "sequence_parallel": sequence}
        shared = seeded(functools.partial(te.Linear, 32, 48, **options))
        rule = recipe.DelayedScaling(amax_history_len=4)
        for step in range(3):
            torch.manual_seed(step)
            x, grad = torch.randn(8, 5, 32), torch.randn(8, 5, 48)
            with scope(group, rule):
                output = whole(x)
            with scope(group, rule):
                mine = shared(part(group, x, 0) if sequence else x)
            output.backward(grad)
            mine.backward(part(group, grad, -1))
            for (name, buffer), theirs in zip(shared.named_buffers(), whole.buffers(), strict=False):
                assert torch.equal(buffer, theirs), (step, name)
            if step:
                assert torch.equal(mine, part(group, output, -1))


@ranks.case(2)
def ranks_agree_on_the_scales_of_tokens_without_reduce_amax(group):
    rule = recipe.DelayedScaling(amax_history_len=4, reduce_amax=False)
    layer = seeded(lambda: te.Linear(32, 32, parallel_mode="column", tp_group=group, sequence_parallel=True))
    for step in range(3):
        x = torch.full((2, 3, 32), 1.0 + step + rank_of(group))
        with scope(group, rule):
            layer(x).sum().backward()
    assert layer.input_amax_history.tolist() == [0, 2, 3, 4]
    ranks.assert_same_bits(group, {"scale": layer.input_scale})


def gathers(events):
    """Bytes that this rank sends to be gathered, one number a collective."""
    return [event.input_shapes[0][0] for event in events.events() if event.name == "gloo:all_gather"]


@ranks.case(2)
def fp8_codes_travel_as_bytes(group):
    """Forward pass of 64 x 512 inputs a rank: bf16 sends two bytes an element, FP8 one, and its scales."""
    elements = 64 * 512
    scales = {"delayed": 4, "current": 4, "row": 4 * 64, "block": 4 * elements // 128, "mxfp8": elements // 32}
    for make in (
        lambda: te.Linear(512, 64, parallel_mode="column", tp_group=group, sequence_parallel=True),
        lambda: te.LayerNormLinear(512, 64, parallel_mode="column", tp_group=group, sequence_parallel=True),
        lambda: te.LayerNormMLP(512, 64, set_parallel_mode=True, tp_group=group, sequence_parallel=True),
    ):
        layer, x = make(), torch.randn(64, 1, 512)
        for name in (None, *scales):
            rule = ALL_RECIPES[name or "none"]
            with scope(group, rule), torch.no_grad():
                layer(x)
            with torch.autocast("cpu", torch.bfloat16), scope(group, rule), profile(record_shapes=True) as events:
                output = layer(x)
            sent = gathers(events)
            if name is None:
                assert sent == [2 * elements]
                continue
            assert sorted(sent) == sorted([elements, scales[name]]), name
            with profile(record_shapes=True) as events:  # the same again for the weight's gradient, and half for delayed's
                output.sum().backward()
            if name in ("delayed", "current", "mxfp8"):
                assert elements in gathers(events) and max(gathers(events)) == elements, name


@ranks.case(2)
def ranks_with_other_scales_are_told_apart(group):
    layer = seeded(lambda: te.Linear(8, 8, parallel_mode="column", tp_group=group, sequence_parallel=True))
    layer.input_scale.fill_(1.0 + rank_of(group))
    with pytest.raises(RuntimeError, match="one scale on all ranks of tp_group"), scope(group, recipe.DelayedScaling()):
        layer(torch.ones(2, 1, 8))


@ranks.case(2)
def mistakes_name_the_argument(group):
    tp = {"set_parallel_mode": True, "tp_group": group}
    for error, message, make in (
        (
            ValueError,
            "out_features that tp_size=2 divides, got 5",
            lambda: te.Linear(8, 5, parallel_mode="column", tp_group=group),
        ),
        (ValueError, "in_features that tp_size=2 divides, got 5", lambda: te.Linear(5, 8, parallel_mode="row", tp_group=group)),
        (
            ValueError,
            r"parameters_split\['a'\] that tp_size=2",
            lambda: te.Linear(8, 6, parallel_mode="column", tp_group=group, parameters_split={"a": 3, "b": 3}),
        ),
        (ValueError, "ffn_hidden_size that tp_size=2 divides, got 7", lambda: te.LayerNormMLP(8, 7, **tp)),
        (ValueError, "num_attention_heads that tp_size=2 divides, got 3", lambda: te.MultiheadAttention(12, 3, **tp)),
        (ValueError, "num_gqa_groups that tp_size=2 divides, got 1", lambda: te.TransformerLayer(8, 8, 2, 1, **tp)),
        (
            ValueError,
            "tp_size 2, the ranks of tp_group, got 3",
            lambda: te.Linear(6, 6, parallel_mode="row", tp_group=group, tp_size=3),
        ),
        (
            ValueError,
            "tp_group of tp_size=4 ranks, got one of 2",
            lambda: te.Linear(8, 8, parallel_mode="row", tp_size=4).set_tensor_parallel_group(group),
        ),
        (ValueError, "a norm needs all features", lambda: te.LayerNormLinear(8, 8, parallel_mode="row", tp_group=group)),
        (
            TypeError,
            "tp_group a torch.distributed.ProcessGroup, got 'x'",
            lambda: te.Linear(8, 8, parallel_mode="row", tp_group="x"),
        ),
        (
            RuntimeError,
            "tokens that the 2 ranks .* divide",
            lambda: te.Linear(8, 8, parallel_mode="row", tp_group=group, sequence_parallel=True)(torch.zeros(3, 1, 4)),
        ),
        (
            RuntimeError,
            r"x \[tokens, ..., in\]",
            lambda: te.Linear(8, 8, parallel_mode="column", tp_group=group, sequence_parallel=True)(torch.zeros(8)),
        ),
    ):
        with pytest.raises(error, match=message):
            make()


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
