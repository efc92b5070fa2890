"""Scopes that torch.utils.checkpoint restores for its second run: torch's own autocast, and through this file Plimsoll's scopes.

Its two implementations are replaced here by themselves around a function that restores the scopes. Both are looked up at each
call, so it does not matter who imported `checkpoint` before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import checkpoint as implementation

from plimsoll._scope import Scope, in_force, show
from plimsoll._torch_internals import checkpoint_runs, replace_checkpoint_runs
from plimsoll.amp.precision_switch import table_holds

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_enter_table = torch.ops.plimsoll.enter_precision_table.default

_reentrant_forward = implementation.CheckpointFunction.forward


class _Table(Scope):
    """The precision table as it is where this object is made."""

    def __init__(self) -> None:
        self._holds = table_holds()

    def _open(self) -> None:
        _enter_table(self._owner, holds=self._holds)


def carries_scopes(context_fn: Callable[[], Contexts]) -> Callable[[], Contexts]:
    """Marks a context_fn of torch.utils.checkpoint whose contexts restore the scopes themselves."""
    context_fn.carries_scopes = True  # type: ignore[attr-defined]
    return context_fn


class _FirstRun(Scope):
    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def _open(self) -> None:
        self._tape.enter_first_run(self._owner)


class _SecondRun(Scope):
    """The scopes of the thread that made the tape, with what the first run has put on it."""

    def __init__(self, tape: Any) -> None:
        self._tape, self._shown = tape, in_force()

    def _open(self) -> None:
        show(self._tape.enter_second_run(self._owner), self._shown)


@carries_scopes
def checkpoint_contexts() -> Contexts:
    """For ``torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False, context_fn=checkpoint_contexts)``: the
    second run finds the autocast scopes and the scales of the first, and changes no scaling state (plimsoll/amp/second_run.h)."""
    tape = torch.classes.plimsoll.ScaleTape()
    return _FirstRun(tape), _SecondRun(tape)


def _running_inside(context: AbstractContextManager[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return run


@functools.wraps(_reentrant_forward)
def _forward(ctx: Any, run_function: Callable[..., Any], *rest: Any) -> Any:
    # The first run has no gradients, so there is nothing that FP8 scopes could record: layers refuse the second run.
    again = run_function if torch.compiler.is_compiling() else _running_inside(_Table(), run_function)
    return _reentrant_forward(ctx, again, *rest)  # type: ignore[no-untyped-call]


@functools.wraps(checkpoint_runs)
def _generator(
    function: Callable[..., Any],
    preserve_rng_state: bool = True,
    context_fn: Any = implementation.noop_context_fn,
    *rest: Any,
    **kwargs: Any,
) -> Iterator[None]:
    carried = getattr(context_fn, "carries_scopes", False) or torch.compiler.is_compiling()  # a graph holds the scopes
    first, second = (nullcontext(), nullcontext()) if carried else checkpoint_contexts()
    with first:
        yield from checkpoint_runs(_running_inside(second, function), preserve_rng_state, context_fn, *rest, **kwargs)


def install() -> None:
    implementation.CheckpointFunction.forward = staticmethod(_forward)  # type: ignore[method-assign]
    replace_checkpoint_runs(_generator)
