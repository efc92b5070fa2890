"""Amaxes over the ranks of fp8_group: one collective a pass, and equal scales everywhere."""

import datetime
from typing import Any

import plimsoll.pytorch as te
import pytest
import ranks
import torch
import torch.distributed as dist
from oracle import delayed_scale
from plimsoll.common.recipe import DelayedScaling, MXFP8BlockScaling
from rounding import approx
from torch.profiler import profile

RULE = DelayedScaling(amax_history_len=4)
ALONE = DelayedScaling(amax_history_len=4, reduce_amax=False)


def layer_of(**options):
    torch.manual_seed(0)
    return te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, **options)


def rank_data(group, step):
    """Other values on each rank, of other sizes."""
    rank = dist.get_rank(group)
    torch.manual_seed(100 * step + rank)
    return torch.randn(5, 2, 32) * (1 + rank)


def train(group, module, rule, step=0, data=None):
    with te.fp8_autocast(fp8_recipe=rule, fp8_group=group):
        output = module(rank_data(group, step) if data is None else data)
    output.square().sum().backward()


def maxima(events):
    return sum(event.count for event in events.key_averages() if event.key == "gloo:all_reduce")


@ranks.case(2)
def scales_and_histories_are_equal_bit_for_bit(group):
    module = layer_of()
    for step in range(3):
        train(group, module, RULE, step)
        ranks.assert_same_bits(group, dict(module.named_buffers()))


@ranks.case(3)
def histories_hold_the_largest_of_all_ranks(group):
    # In the first step weights and inputs are the same with and without; grad_output's scale is not used before it is set.
    together, alone = te.Linear(8, 4), te.Linear(8, 4)
    with torch.no_grad():
        for module in (together, alone):
            module.weight.fill_(dist.get_rank(group) + 0.5)
    data = torch.full((2, 8), float(10 - dist.get_rank(group)))
    train(group, together, RULE, data=data)
    train(group, alone, ALONE, data=data)
    for name in ("input", "weight", "grad_output"):
        mine = getattr(alone, f"{name}_amax_history")
        largest = torch.stack(ranks.gathered(group, mine)).amax(0)
        assert torch.equal(getattr(together, f"{name}_amax_history"), largest), name
        code_format = "e5m2" if name == "grad_output" else "e4m3"
        assert getattr(together, f"{name}_scale").item() == delayed_scale(RULE, largest.max(), code_format).item()


@ranks.case(2)
def without_reduce_amax_nothing_is_sent(group):
    module = layer_of()
    with profile() as events:
        train(group, module, ALONE)
    assert maxima(events) == 0
    mine, other = (state["layernorm_mlp.fc1_input_scale"] for state in ranks.gathered(group, module.state_dict()))
    assert not torch.equal(mine, other)


@ranks.case(2)
def each_pass_is_one_collective(group):
    module = layer_of()
    with profile() as forward, te.fp8_autocast(fp8_recipe=RULE, fp8_group=group):
        output = module(rank_data(group, 0))
    assert maxima(forward) == 1
    with profile() as backward:
        output.sum().backward()
    assert maxima(backward) == 1
    with profile() as nothing, torch.no_grad(), te.fp8_autocast(fp8_recipe=RULE, fp8_group=group):
        module(rank_data(group, 0))
    assert maxima(nothing) == 0


@ranks.case(2)
def two_scopes_in_one_backward_pass_are_one_collective(group):
    module, total = layer_of(), torch.zeros(())
    for step in range(2):
        with te.fp8_autocast(fp8_recipe=RULE, fp8_group=group):
            total = total + module(rank_data(group, step)).sum()
    with profile() as backward:
        total.backward()
    assert maxima(backward) == 1
    assert module.layernorm_mlp.fc1_grad_output_step.item() == 1


@ranks.case(2)
def more_amaxes_than_one_message_holds_take_two(group):
    layers: Any = torch.nn.Sequential(*(te.Linear(1, 1) for _ in range(520)))
    with torch.no_grad():
        for number, layer in enumerate(layers):
            layer.weight.fill_(1 + 0.001 * number * (1 if dist.get_rank(group) else -1))
    with profile() as events, te.fp8_autocast(fp8_recipe=RULE, fp8_group=group):
        layers(torch.ones(1, 1))
    assert maxima(events) == 2
    ranks.assert_same_bits(group, {name: b for name, b in layers.named_buffers() if "grad_output" not in name})
    for number, layer in enumerate(layers):
        # Roundings: of the weight, its quotient with 448 and the reciprocal.
        assert layer.weight_scale.item() == approx((1 + 0.001 * number) / 448, 3)


@ranks.case(2)
def values_that_are_not_finite_on_one_rank_change_no_history(group):
    module: Any = te.Linear(8, 4)
    data = torch.full((2, 8), 3.0)
    if dist.get_rank(group) == 1:
        data[0, 0] = float("nan")
        data[1, 0] = float("inf")
    with te.fp8_autocast(fp8_recipe=RULE, fp8_group=group):
        module(data)
    assert module.input_amax_history.tolist() == [0, 0, 0, 3]
    ranks.assert_same_bits(group, dict(module.named_buffers()))


@ranks.case(2)
def an_inner_delayed_scope_is_reduced_at_the_end_of_the_outer_one(group):
    module: Any = te.Linear(8, 4)
    data = torch.full((2, 8), 1.0 + dist.get_rank(group))
    with te.fp8_autocast(fp8_recipe=MXFP8BlockScaling(), fp8_group=group), te.fp8_autocast(fp8_recipe=RULE):
        module(data)
    assert module.input_amax_history.tolist() == [0, 0, 0, 2]


@ranks.case(2)
def an_inner_scope_with_another_group_is_refused(group):
    outer = te.fp8_autocast(fp8_recipe=RULE, fp8_group=group)
    inner = te.fp8_autocast(fp8_recipe=RULE, fp8_group=dist.group.WORLD)
    with outer, pytest.raises(ValueError, match="fp8_group of the outermost scope"), inner:
        pass


@ranks.case(2)
def ranks_that_recorded_other_tensors_all_raise(group):
    first: Any = te.Linear(8, 8)
    second = te.Linear(8, 8)
    unequal = pytest.raises(RuntimeError, match="fp8_group: expected the same tensors .* 2 ranks, got amaxes of")
    with unequal, te.fp8_autocast(fp8_recipe=RULE, fp8_group=group):
        x = first(torch.ones(2, 8))
        if dist.get_rank(group):
            second(x)
    assert first.input_step.item() == 0
    train(group, first, RULE, data=torch.ones(2, 8))  # the group is as good as before
    ranks.assert_same_bits(group, dict(first.named_buffers()))


@ranks.case(4)
def a_rank_that_does_not_come_is_an_error_after_the_time_out(_):
    pair = dist.new_group([2, 3], timeout=ranks.LIMIT)  # in which the two find each other
    if dist.get_rank() == 2:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), pair)
        with pytest.raises(RuntimeError, match="process group .* of 2 ranks failed; a rank may have ended"):
            train(pair, te.Linear(8, 8), RULE, data=torch.ones(2, 8))


@ranks.case(4)
def a_group_without_this_rank_is_refused(_):
    pair = dist.new_group([0, 1])
    if dist.get_rank() >= 2:
        with pytest.raises(ValueError, match="fp8_group .*holds this rank"):
            te.fp8_autocast(fp8_recipe=RULE, fp8_group=pair)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
