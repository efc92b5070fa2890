"""plimsoll.amp.GradScaler with a hysteresis and with a scale for each optimizer; its bounds, options and states."""

import copy
import math
import pickle
import random
from typing import Any

import pytest
import torch
from amp_models import net
from plimsoll.amp import AutomaticLossScaler, GradScaler
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


def overflowing_step(scaler, optimizers, poisoned):
    """A step of each optimizer; the gradients of the poisoned are not finite."""
    for optimizer in optimizers:
        parameter = optimizer.param_groups[0]["params"][0]
        optimizer.zero_grad()
        scaler.scale((parameter * (math.inf if optimizer in poisoned else 1.0)).sum(), optimizer).backward()
        scaler.step(optimizer)
    scaler.update()


def two_optimizers():
    return [torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.5) for _ in range(2)]


def test_overflows_up_to_the_hysteresis_leave_the_scale_and_then_each_backs_it_off():
    optimizers = two_optimizers()
    scaler = GradScaler("cpu", init_scale=16.0, growth_interval=2, hysteresis=3)
    expected = [16, 16, 16, 8, 4, 4, 8, 8, 8, 4]
    for overflows, scale in zip([1, 0, 1, 1, 1, 0, 0, 1, 1, 1], expected, strict=True):
        overflowing_step(scaler, optimizers[:1], optimizers[:overflows])
        assert scaler.get_scale() == scale


def test_a_state_keeps_the_hysteresis_and_states_without_it_load():
    optimizers = two_optimizers()[:1]
    scaler, plain = GradScaler("cpu", hysteresis=3), torch.amp.GradScaler("cpu")
    for _ in range(2):
        overflowing_step(scaler, optimizers, optimizers)
    for again in (GradScaler("cpu"), copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        again.load_state_dict(scaler.state_dict())
        assert again.state_dict() == scaler.state_dict()
        overflowing_step(again, optimizers, optimizers)
        assert again.get_scale() == 2.0**15, "the third"
    plain.load_state_dict(scaler.state_dict())
    assert plain.get_scale() == 2.0**16
    scaler.load_state_dict(plain.state_dict())
    overflowing_step(scaler, optimizers, optimizers)
    assert scaler.get_scale() == 2.0**16, "the first of three"


@pytest.mark.parametrize("kind", [GradScaler, AutomaticLossScaler])
def test_optimizers_that_it_lists_train_as_under_a_scaler_of_their_own(kind):
    options: dict[str, Any] = {"growth_interval": 3, "hysteresis": 2}
    ours, theirs = ([net(seed, (5, 7, 3)) for seed in (0, 1)] for _ in range(2))
    my_optimizers, their_optimizers = ([torch.optim.SGD(one.parameters(), lr=0.01) for one in each] for each in (ours, theirs))
    together = kind("cpu", optimizers=my_optimizers, **options)
    alone = [kind("cpu", **options) for _ in theirs]
    dice = random.Random(1)
    for step in range(200):
        for place in (0, 1):
            if place == 1 and step % 3 == 0:  # is not stepped
                continue
            batch, poison = torch.randn(4, 5), math.inf if dice.random() < 0.2 else None
            for one, optimizer, scaler, of in (
                (ours[place], my_optimizers[place], together, my_optimizers[place]),
                (theirs[place], their_optimizers[place], alone[place], None),
            ):
                optimizer.zero_grad()
                scaler.scale([one(batch).square().mean()], of)[0].backward()
                if poison is not None:
                    one[0].weight.grad[2, 3] = poison
                if step % 2:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer, max_norm=None if step % 2 else 1.0)
            alone[place].update()
        together.update()
        scales = [scaler.get_scale() for scaler in alone]
        assert [together.get_scale(optimizer) for optimizer in my_optimizers] == scales and together.get_scale() == min(scales)
        if step == 100:  # a copy of all goes on
            together, my_optimizers, ours = pickle.loads(pickle.dumps((together, my_optimizers, ours)))
        for mine, other in zip(ours, theirs, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), other.parameters(), strict=True))
    assert scales[0] != scales[1]


def test_one_of_two_optimizers_that_overflows_backs_off_alone():
    optimizers = two_optimizers()
    scaler = GradScaler("cpu", optimizers=optimizers, hysteresis=2)
    for _ in range(2):
        overflowing_step(scaler, optimizers, optimizers[:1])
    assert [scaler.get_scale(each) for each in optimizers] == [2.0**15, 2.0**16]
    state = scaler.state_dict()
    assert state["scale"] == [2.0**15, 2.0**16] and state["_growth_tracker"] == [0, 2] and state["_overflows"] == [2, 0]
    again = GradScaler("cpu", optimizers=optimizers)
    again.load_state_dict(state)
    assert again.state_dict() == state
    for wrong, message in (
        (GradScaler("cpu"), "of one scale for all, got 2 scales"),
        (again, "of 2 scales, got one scale for all"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong.load_state_dict(GradScaler("cpu").state_dict() if wrong is again else state)
    assert again.state_dict() == state
    scaler.update(64.0)
    assert [scaler.get_scale(each) for each in optimizers] == [64, 64]
    with pytest.raises(ValueError, match="expected one of its 2 optimizers, each of which has a scale, got none"):
        scaler.scale(torch.ones(()))
    other = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    for call in (scaler.step, scaler.unscale_, scaler.get_scale):
        with pytest.raises(ValueError, match="each of which has a scale, got another SGD"):
            call(other)
    # Disabled, and with one scale for all, losses may be scaled with their optimizers all the same.
    for scale, scaler in ((1, GradScaler("cpu", enabled=False, optimizers=optimizers)), (2.0**16, GradScaler("cpu"))):
        assert scaler.scale(torch.ones(()), optimizers[0]) == scale and scaler.get_scale(optimizers[0]) == scale


def test_bounds_hold_for_the_first_scale_and_for_one_that_is_given():
    optimizers = two_optimizers()
    for options in ({}, {"optimizers": optimizers}):
        scaler = GradScaler("cpu", min_scale=128, max_scale=1024, **options)
        for new_scale, expected in ((None, 1024), (1.0, 128), (2, 128), (torch.tensor(4096.0), 1024), (512, 512)):
            if new_scale is not None:
                scaler.scale(torch.ones(()), optimizers[0])
                scaler.update(new_scale)
            assert scaler.get_scale() == expected
    fixed = GradScaler("cpu", min_scale=128, max_scale=128)
    overflowing_step(fixed, optimizers[:1], optimizers[:1])
    assert fixed.get_scale() == 128


@pytest.mark.parametrize(
    "options,error,message",
    [
        ({"hysteresis": 1.5}, TypeError, "hysteresis an integer, got 1.5"),
        ({"hysteresis": math.nan}, TypeError, "hysteresis an integer, got nan"),
        ({"hysteresis": "2"}, TypeError, "hysteresis an integer, got '2'"),
        ({"hysteresis": None}, TypeError, "hysteresis an integer, got None"),
        ({"hysteresis": 0}, ValueError, "expected hysteresis >= 1, got 0"),
        ({"min_scale": "1"}, TypeError, "min_scale a number, got '1'"),
        ({"max_scale": None}, TypeError, "max_scale a number, got None"),
        ({"min_scale": math.nan}, ValueError, "0 <= min_scale <= max_scale, got nan and inf"),
        ({"min_scale": math.inf}, ValueError, "0 <= min_scale <= max_scale, got inf and inf"),
        ({"init_scale": math.nan}, ValueError, "init_scale that is finite and >= 0, got nan"),
        ({"init_scale": -4}, ValueError, "init_scale that is finite and >= 0, got -4"),
        ({"backoff_factor": -1.0}, ValueError, "backoff_factor in .0, 1., got 2.0 and -1.0"),
        ({"growth_interval": 2.5}, TypeError, "growth_interval an integer, got 2.5"),
        ({"init_scale": "big"}, TypeError, "init_scale a number, got 'big'"),
        ({"optimizers": torch.optim.SGD([torch.ones(1)], lr=0.1)}, TypeError, "optimizers a list of optimizers, got SGD"),
        ({"optimizers": ["sgd"]}, TypeError, r"optimizers a list of optimizers, got \['sgd'\]"),
        ({"optimizers": 2 * [torch.optim.SGD([torch.ones(1)], lr=0.1)]}, ValueError, "each of the optimizers once, got number 1"),
    ],
)
@pytest.mark.parametrize("kind", [GradScaler, AutomaticLossScaler])
def test_options_that_are_none_are_named(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind("cpu", **options)


@pytest.mark.parametrize("max_norm,error", [(math.nan, ValueError), (-1.0, ValueError), ("1", TypeError)])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_norm_that_is_none_is_named_and_changes_nothing(enabled, max_norm, error):
    (optimizer,) = two_optimizers()[:1]
    scaler = GradScaler("cpu", enabled=enabled)
    parameter = optimizer.param_groups[0]["params"][0]
    scaler.scale(parameter.sum()).backward()
    before = parameter.grad.clone()
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(error, match="GradScaler: expected max_norm"):
            call(optimizer, max_norm=max_norm)
    assert torch.equal(parameter.grad, before)
    scaler.step(optimizer, max_norm=1.0)


@pytest.mark.parametrize(
    "change,error,message",
    [
        ({"_overflows": [-1, 0]}, ValueError, "_overflows >= 0, got -1"),
        ({"_overflows": [0]}, ValueError, "_overflows of 2 scales, got 1 scale"),
        ({"_growth_tracker": [1, 2, 3]}, ValueError, "_growth_tracker of 2 scales, got 3 scales"),
        ({"_growth_tracker": 1}, ValueError, "_growth_tracker of 2 scales, got one scale for all"),
        ({"_growth_tracker": None}, ValueError, "expected _growth_tracker in the state, got scale, growth_factor"),
        ({"growth_interval": None}, ValueError, "expected growth_interval in the state"),
        ({"growth_interval": 2.5}, TypeError, "growth_interval an integer, got 2.5"),
        ({"growth_factor": 0.5}, ValueError, "growth_factor > 1 and backoff_factor in .0, 1., got 0.5 and 0.5"),
        ({"backoff_factor": "half"}, TypeError, "backoff_factor a number, got 'half'"),
        ({"scale": [math.nan, 1.0]}, ValueError, "a scale that is finite and >= 0, got nan"),
        ({"scale": ["big", 1.0]}, TypeError, "scale a number, got 'big'"),
        ({"hysteresis": 0}, ValueError, "hysteresis >= 1, got 0"),
    ],
)
def test_a_state_that_no_scaler_saves_is_an_error_that_changes_nothing(change, error, message):
    scaler = GradScaler("cpu", optimizers=two_optimizers(), hysteresis=2)
    before = scaler.state_dict()
    state = {name: value for name, value in {**before, "scale": [4.0, 2.0], **change}.items() if value is not None}
    with pytest.raises(error, match=message):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == before


@pytest.mark.parametrize("options", [{"flushed_share": 2.0}, {"headroom": 0}, {"headroom": math.nan}])
def test_options_of_the_automatic_scale_are_in_range(options):
    with pytest.raises(ValueError, match="flushed_share in .0, 1. and headroom that is finite and > 0, got"):
        AutomaticLossScaler("cpu", **options)


def test_a_scale_that_is_no_number_or_below_zero_is_an_error():
    scaler: Any = GradScaler("cpu")
    scaler.scale(torch.ones(()))
    for new_scale, error in ((math.nan, ValueError), (-2.0, ValueError), ("4", TypeError)):
        with pytest.raises(error, match="GradScaler: expected new_scale"):
            scaler.update(new_scale)
    assert scaler.get_scale() == 2.0**16
    for state in (None, [1]):
        with pytest.raises(TypeError, match="a state that is a dictionary"):
            scaler.load_state_dict(state)
