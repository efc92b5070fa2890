"""What torch.utils.checkpoint restores for its second run: torch's own autocast, and through this file Plimsoll's scopes.

torch keeps no list of states that others could join, so its two implementations are replaced here by themselves around a
function that restores the scopes. Both are looked up at each call, so it does not matter who imported `checkpoint` before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import checkpoint as implementation

from plimsoll.amp.precision_switch import hold_table, table_holds

Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]

# What contexts to open around the first and the second run; plimsoll.pytorch adds its FP8 scopes.
scopes: list[Callable[[], Contexts]] = []

_reentrant_forward = implementation.CheckpointFunction.forward
_without_reentrance = implementation._checkpoint_without_reentrant_generator


class _Table(AbstractContextManager[None]):
    """The precision table as it is where this object is made."""

    def __init__(self) -> None:
        self._holds = table_holds()
        self._outside: list[bool] = []

    def __enter__(self) -> None:
        self._outside.append(table_holds())
        hold_table(self._holds)

    def __exit__(self, *error: Any) -> None:
        hold_table(self._outside.pop())


def table_contexts() -> Contexts:
    """The second run finds the precision table of the first."""
    return nullcontext(), _Table()


def inside(outer: Contexts, inner: Contexts) -> Contexts:
    """Both, each time that they are entered."""
    return _Both(outer[0], inner[0]), _Both(outer[1], inner[1])


class _Both(AbstractContextManager[None]):
    def __init__(self, outer: AbstractContextManager[None], inner: AbstractContextManager[None]) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        try:
            self._inner.__enter__()
        except BaseException:
            self._outer.__exit__(*sys.exc_info())
            raise

    def __exit__(self, *error: Any) -> bool | None:
        try:
            return self._inner.__exit__(*error)
        finally:
            self._outer.__exit__(*error)


def carries_scopes(context_fn: Callable[[], Contexts]) -> Callable[[], Contexts]:
    """Marks a context_fn of torch.utils.checkpoint whose contexts restore the scopes themselves."""
    context_fn.carries_scopes = True  # type: ignore[attr-defined]
    return context_fn


def _running_inside(context: AbstractContextManager[None], function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return run


@functools.wraps(_reentrant_forward)
def _forward(ctx: Any, run_function: Callable[..., Any], *rest: Any) -> Any:
    # The first run has no gradients, so there is nothing that FP8 scopes could record: layers refuse the second run.
    return _reentrant_forward(ctx, _running_inside(_Table(), run_function), *rest)


@functools.wraps(_without_reentrance)
def _generator(
    function: Callable[..., Any], preserve_rng_state: bool = True, context_fn: Any = implementation.noop_context_fn, *rest: Any, **kwargs: Any
) -> Iterator[None]:
    first, second = table_contexts()
    if not getattr(context_fn, "carries_scopes", False) and not torch.compiler.is_compiling():
        for contexts in scopes:
            first, second = inside((first, second), contexts())
    with first:
        yield from _without_reentrance(_running_inside(second, function), preserve_rng_state, context_fn, *rest, **kwargs)


def install() -> None:
    implementation.CheckpointFunction.forward = staticmethod(_forward)  # type: ignore[method-assign]
    implementation._checkpoint_without_reentrant_generator = _generator
    composable = sys.modules.get("torch.distributed._composable.checkpoint_activation")
    if composable is not None:  # imported before, and so with a name of its own for it
        composable._checkpoint_without_reentrant_generator = _generator  # type: ignore[attr-defined]
