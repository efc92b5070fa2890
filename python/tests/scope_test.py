"""Scopes of `with` end with it, whatever ends it."""

import asyncio
import contextlib
import copy
import pickle
import threading
from typing import Any, cast

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll import amp
from plimsoll._scope import _scopes_of_thread
from plimsoll.amp.precision_switch import table_holds
from plimsoll.common import recipe
from plimsoll.pytorch.autocast import current_recipe, innermost_scope

HALF, BFLOAT = torch.float16, torch.bfloat16
ONE, TWO = recipe.DelayedScaling(), recipe.Float8CurrentScaling()


def state():
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        table_holds(),
        current_recipe(),
        _scopes_of_thread(),
    )


OUTSIDE = (False, BFLOAT, True, False, None, 0)


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    yield
    assert state() == OUTSIDE and innermost_scope() is None


def both():
    stack = contextlib.ExitStack()
    stack.enter_context(amp.autocast("cpu", HALF))
    stack.enter_context(te.autocast(recipe=ONE))
    return stack


@pytest.mark.parametrize(
    "scope,keyword",
    [
        (te.autocast, r"^autocast:.*pass a recipe as recipe=\.\.\.$"),
        (te.fp8_autocast, r"^fp8_autocast:.*pass a recipe as fp8_recipe=\.\.\.$"),
        (te.quantized_model_init, r"^quantized_model_init:.*pass a recipe as recipe=\.\.\.$"),
        (te.fp8_model_init, r"^quantized_model_init:.*pass a recipe as recipe=\.\.\.$"),
        (
            lambda given: amp.autocast("cpu", HALF, given),
            r"^amp\.autocast:.*plimsoll\.pytorch\.fp8_autocast\(fp8_recipe=\.\.\.\)$",
        ),
    ],
)
@pytest.mark.parametrize("given", [recipe.NVFP4BlockScaling(), ONE, recipe.Auto()])
def test_a_recipe_without_its_keyword_is_an_error_that_names_it(scope, keyword, given):
    with pytest.raises(TypeError, match=keyword) as caught, scope(given):
        pass
    assert f"expected enabled True or False, got {type(given).__name__}" in str(caught.value)


def test_flags_of_scopes_are_true_or_false():
    for make in (te.autocast, te.fp8_autocast):
        with pytest.raises(TypeError, match="expected enabled True or False, got 'no'"):
            make(enabled=cast(Any, "no"))
        with pytest.raises(TypeError, match="expected calibrating True or False, got Float8CurrentScaling"):
            make(True, cast(Any, TWO))
    with pytest.raises(TypeError, match="expected fp8_recipe a plimsoll.common.recipe.Recipe, got 'delayed'"):
        te.fp8_autocast(fp8_recipe=cast(Any, "delayed"))
    with pytest.raises(TypeError, match="expected enabled True or False, got None"), te.quantized_model_init(cast(Any, None)):
        pass


def test_an_exit_stack_closes_them():
    with both():
        assert state() == (True, HALF, True, True, ONE, 2)


def test_one_object_may_be_entered_again_and_inside_itself():
    outer, inner = amp.autocast("cpu", HALF), te.autocast(recipe=ONE)
    for _ in range(2):
        with outer, inner, outer, inner:
            assert state() == (True, HALF, True, True, ONE, 4)


def test_copies_and_pickles_are_scopes_of_their_own():
    for scope in (amp.autocast("cpu", HALF), te.autocast(recipe=ONE)):
        with scope:
            for other in (copy.deepcopy(scope), copy.copy(scope), pickle.loads(pickle.dumps(scope))):
                with other:
                    assert _scopes_of_thread() == 2


def test_a_scope_that_was_not_entered_cannot_be_left():
    for scope in (amp.autocast("cpu", HALF), te.autocast(recipe=ONE)):
        with pytest.raises(RuntimeError, match="expected one that this thread has entered"):
            scope.__exit__(None, None, None)
        with scope:
            thread = threading.Thread(target=pytest.raises, args=(RuntimeError, scope.__exit__, None, None, None))
            thread.start()
            thread.join()


def suspended(scope):
    with scope:
        yield state()


def test_a_generator_may_be_suspended_inside_and_end_at_any_time():
    """As in torch, what runs meanwhile is inside, too; each that ends takes its own scope along and no other."""
    one, two = suspended(te.autocast(recipe=ONE)), suspended(te.autocast(recipe=TWO))
    first, second = suspended(amp.autocast("cpu", HALF)), suspended(amp.autocast("cpu", BFLOAT, cache_enabled=False))
    for generator in (one, first, two, second):
        next(generator)
    assert state() == (True, BFLOAT, False, True, TWO, 4)
    first.close()
    one.close()
    assert state() == (True, BFLOAT, False, True, TWO, 2)
    two.close()
    assert state() == (True, BFLOAT, False, True, None, 1)
    second.close()
    assert state() == OUTSIDE


def test_amaxes_of_a_generators_scope_reach_their_slots():
    layer: Any = te.Linear(4, 4)

    def training():
        with te.autocast(recipe=ONE):
            yield layer(torch.ones(2, 4))

    generator = training()
    next(generator)
    with te.autocast(recipe=TWO):
        assert list(generator) == []  # ends normally, inside another scope
        assert current_recipe() is TWO
    assert layer.input_step.item() == 1


def test_tasks_that_take_turns_end_in_any_order():
    async def task(scope, turns):
        with scope:
            for _ in range(turns):
                await asyncio.sleep(0)

    async def tasks():
        scopes = [amp.autocast("cpu", HALF), te.autocast(recipe=ONE), amp.autocast("cpu", BFLOAT), te.autocast(recipe=TWO)]
        await asyncio.gather(*(task(scope, turns) for turns, scope in enumerate(scopes)))

    asyncio.run(tasks())


def test_an_exception_in_the_entry_leaves_nothing_open(monkeypatch):
    class Stop(BaseException):
        pass

    def stop(*_):
        raise Stop

    for kind, scope in ((amp.autocast, amp.autocast("cpu", HALF)), (te.autocast, te.autocast(recipe=ONE))):
        opens = kind._open
        monkeypatch.setattr(kind, "_open", lambda self, opens=opens: (opens(self), stop()))
        with pytest.raises(Stop), scope:
            raise AssertionError("not inside")
        monkeypatch.undo()
        assert state() == OUTSIDE


def test_a_functions_error_at_the_end_is_raised_and_the_scope_is_left():
    layer: Any = te.Linear(4, 4)
    rule = recipe.DelayedScaling(amax_compute_algo=lambda history: -1.0 * history[0])
    with pytest.raises(ValueError), te.autocast(recipe=rule):
        layer(torch.ones(2, 4))
    with te.autocast(recipe=ONE):
        layer(torch.ones(2, 4))
    assert layer.input_step.item() == 1
