"""The recipe Auto: scopes inside each other, wrong arguments, what it refuses, and ranks."""

import copy
import math
import warnings
from typing import Any

import plimsoll
import plimsoll.common.precision
import plimsoll.pytorch as te
import pytest
import ranks
import torch
from auto_training import CALM, RESTLESS, Net, batch, train
from plimsoll.common.recipe import Auto, Float8CurrentScaling, Format


def test_inner_scopes_of_other_recipes_and_without_one_are_their_own():
    auto, model = Auto(**CALM), te.Linear(32, 8)
    x = batch(0)
    with te.autocast(recipe=auto):
        with te.autocast(recipe=Float8CurrentScaling()):
            inner = model(x)
        with te.autocast(enabled=False):
            high = model(x)
    with te.autocast(recipe=Float8CurrentScaling()):
        assert torch.equal(inner, model(x))
    assert torch.equal(high, model(x))
    auto.end_step()
    assert not auto.products() and auto.shares() == {"e4m3": 0.0, "bf16": 0.0}
    with torch.no_grad(), te.autocast(recipe=auto):
        model(x)
    auto.end_step()
    assert not auto.products(), "without gradients nothing is measured"


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"ladder": "e4m3"}, ValueError, "expected a ladder of one format of four bits or one of eight, or both"),
    ({"ladder": "e4m3>e2m1>bf16"}, ValueError, "got 'e4m3>e2m1>bf16'"),
    ({"ladder": "bf16>e4m3"}, ValueError, "expected a ladder"),
    ({"ladder": "e3m4>bf16"}, ValueError, "e3m4"),
    ({"ladder": 3}, ValueError, "expected ladder as a string, got 3"),
    ({"every": 0}, ValueError, "expected every >= 1, got 0"),
    ({"every": 1.5}, ValueError, "expected every as an integer, got 1.5"),
    ({"every": True}, ValueError, "expected every as an integer, got true"),
    ({"every": 10**30}, ValueError, "expected every as an integer"),
    ({"votes": 5}, ValueError, r"expected votes in \[1, 4\], the ballots, got 5"),
    ({"ballots": 65}, ValueError, r"expected ballots in \[1, 64\], got 65"),
    ({"quiet": 0}, ValueError, "expected quiet >= 1"),
    ({"window": -1}, ValueError, "expected window >= 0"),
    ({"last_share": 2}, ValueError, r"expected last_share in \[0, 1\]"),
    ({"demote_share": -1}, ValueError, r"expected demote_share in \[0, 1\]"),
    ({"mean_decay": 1}, ValueError, r"expected mean_decay in \[0, 1\)"),
    ({"flushed": 0}, ValueError, r"expected flushed in \(0, 1\]"),
    ({"bound": (1, 2)}, ValueError, r"expected bound \[input, weight, grad_output\]"),
    ({"bound": (1, 2, 0)}, ValueError, "expected bound > 0"),
    ({"bound": (1, 2, math.nan)}, ValueError, "expected numbers"),
    ({"flushed": torch.ones(1)}, TypeError, "expected numbers"),
]


@pytest.mark.parametrize("arguments, error, message", WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Auto(**arguments)


def test_what_changes_after_the_first_scope_is_an_error():
    auto = Auto()
    auto.every = 0
    with pytest.raises(ValueError, match="expected every >= 1"):
        te.autocast(recipe=auto)
    auto.every = 4
    with te.autocast(recipe=auto):
        pass
    auto.every = 8
    with pytest.raises(ValueError, match="expected arguments that stay as they are"), te.autocast(recipe=auto):
        pass
    auto.fp8_format = Format.HYBRID
    with pytest.raises(ValueError, match="the ladder has the formats"):
        te.autocast(recipe=auto)


def test_wrong_steps_and_states_are_named_and_change_nothing():
    auto, model = Auto(**RESTLESS), Net()
    train(auto, model, range(3))
    before = auto.state_dict()
    for wrong, error in ((-1, ValueError), (2.0, TypeError), (True, TypeError), ("1", TypeError)):
        with pytest.raises(error, match="expected step"):
            auto.end_step(wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match="expected steps"):
            auto.end_step(3, wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match="expected step"):
            auto.abandon_step(wrong)  # type: ignore[arg-type]
    two = copy.deepcopy(before)
    two["layers"][1]["layer"] = two["layers"][0]["layer"]
    states: list[Any] = [None, {}, [], {**before, "step": -1}, {**before, "layers": 3}, {**before, "multiply_adds": [1.0]}]
    states += [{key: value for key, value in before.items() if key != "step"}, {**before, "step": torch.ones(1)}, two]
    for state in states:
        with pytest.raises(ValueError, match="recipe auto|Auto|precision"):
            auto.load_state_dict(state)
    assert auto.state_dict() == before
    with pytest.raises(ValueError, match="expected the state of a ladder mxfp8>fp32, got one of e4m3>bf16"):
        Auto(ladder="mxfp8>fp32").load_state_dict(before)


def test_a_step_in_which_no_layer_computes_warns_once():
    auto = Auto()
    with te.autocast(recipe=auto):
        torch.nn.Linear(32, 8)(batch(0)).sum().backward()
    with pytest.warns(UserWarning, match="expected layers of plimsoll.pytorch in a scope of this recipe"):
        auto.end_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        auto.end_step()
        train(Auto(), Net(), range(2))


def test_weights_as_codes_are_refused():
    with pytest.raises(NotImplementedError, match="Auto"), te.quantized_model_init(recipe=Auto()):
        pass
    with te.quantized_model_init():
        model = te.Linear(32, 8)
    with pytest.raises(NotImplementedError, match="expected weights that are values"), te.autocast(recipe=Auto()):
        model(batch(0))


def test_scopes_without_an_end_of_a_step_warn(monkeypatch):
    monkeypatch.setattr(plimsoll.common.precision, "_MOST_SCOPES", 3)
    auto = Auto()
    auto.abandon_step()
    with pytest.warns(UserWarning, match="expected end_step"):
        for _ in range(3):
            with te.autocast(recipe=Auto()):  # a new one in each step
                pass
    for _ in range(5):
        with te.autocast(recipe=auto):
            pass
        auto.end_step()
    for _ in range(5):
        with torch.no_grad(), te.autocast(recipe=auto):
            pass


@ranks.case(2)
def ranks_take_the_same_decisions(group):
    rank = torch.distributed.get_rank(group)
    auto, model = Auto(every=1, ballots=2), Net()
    changes = []
    for step in range(4):
        with te.autocast(recipe=auto, amax_reduction_group=group):
            output = model(batch(10 * step + rank, outlier=rank == 1))
        output.float().square().mean().backward()
        changes += [str(change) for change in auto.end_step(step, 4)]
        ranks.assert_same_bits(group, dict(model.named_buffers()))
    assert any(change.startswith("first output: e4m3 -> bf16") for change in changes)
    mine, theirs = ranks.gathered(group, (changes, auto.state_dict()))
    assert mine == theirs
    alone, model = Auto(every=1, ballots=2), Net()
    for step in range(4):
        with te.autocast(recipe=alone, amax_reduction_group=torch.distributed.new_group([rank], use_local_synchronization=True)):
            output = model(batch(10 * step + rank, outlier=rank == 1))
        output.float().square().mean().backward()
        alone.end_step(step, 4)
    assert (alone.products()["first/output"].format == "bf16") == (rank == 1), "each by itself"


@ranks.case(2)
def layers_that_ranks_share_are_refused(group):
    shared = te.Linear(32, 8, parallel_mode="column", tp_group=group)
    try:
        with te.autocast(recipe=Auto(), amax_reduction_group=group):
            shared(batch(0))
        raise AssertionError("expected NotImplementedError")
    except NotImplementedError as error:
        assert "tp_size of 2" in str(error)


@ranks.case(2)
def parameters_that_ranks_share_travel_as_values(group):
    from plimsoll.shard import FullyShardedDataParallel

    found = []
    for gather_codes in (True, False):
        auto, model = Auto(**RESTLESS), FullyShardedDataParallel(Net(), group, gather_codes=gather_codes)
        outputs = []
        for step in range(3):
            with te.autocast(recipe=auto, amax_reduction_group=group):
                outputs.append(model(batch(step, outlier=True)))
            outputs[-1].float().square().mean().backward()
            auto.end_step()
        found.append((outputs, auto.state_dict()))
    (codes, decided), (values, expected) = found
    assert all(map(torch.equal, codes, values)) and decided == expected
    mine, theirs = ranks.gathered(group, auto.state_dict())
    assert mine == theirs
    assert auto.products()["first/output"].format == "bf16", auto.products().keys()


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
