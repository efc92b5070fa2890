"""Scopes: inside one, modules compute under its recipe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any

import torch

from plimsoll import _scope
from plimsoll.common.recipe import DelayedScaling, Recipe
from plimsoll.pytorch.arguments import DTYPES, format_of
from plimsoll.pytorch.distributed import Ranks, is_initialized, ranks_of

_enter = torch.ops.plimsoll.enter_fp8_scope.default
_innermost = torch.ops.plimsoll.innermost_fp8_scope.default


class Scope:
    """Scope that modules read. recipe: None for high precision. ranks: those over which the end of the outermost enabled scope
    reduces amaxes."""

    def __init__(self, recipe: Recipe | None, outer: Scope | None, ranks: Ranks | None) -> None:
        self.recipe = recipe
        self.outer = outer
        self.ranks = ranks
        self.is_enabled: bool = recipe is not None or (outer is not None and outer.is_enabled)  # it, or one around it
        self.number = 0  # the library's, of the thread
        # By high-precision format; made here, where torch.compile does not look.
        self.texts = {} if recipe is None else {name: recipe.to_json(name) for name in DTYPES}


class _Thread(threading.local):
    innermost: Scope | None = None


_thread = _Thread()


def innermost_scope() -> Scope | None:
    """Innermost scope of this thread. A scope that the library has left, by an interrupt perhaps, is left here, too."""
    scope = _thread.innermost
    if scope is None or torch.compiler.is_compiling():
        return scope
    number = _innermost()
    while scope is not None and scope.number != number:
        scope = scope.outer
    _thread.innermost = scope
    return scope


_scope.after_leaving.append(innermost_scope)


def resume(scope: Scope | None, enter: Callable[[str | None], int]) -> None:
    """Makes a scope that may have ended the innermost one again; enter(recipe) does so in the library, and gives its number."""
    recipe = None if scope is None else scope.recipe
    again = Scope(recipe, innermost_scope(), None if scope is None else scope.ranks)
    again.is_enabled = scope is not None and scope.is_enabled
    again.number = enter(None if recipe is None else again.texts["fp32"])
    _thread.innermost = again


def current_recipe() -> Recipe | None:
    """Recipe of the innermost scope of this thread; None outside all and where it is not enabled."""
    scope = innermost_scope()
    return None if scope is None else scope.recipe


def high_precision_dtype(default: torch.dtype) -> torch.dtype:
    """Dtype of all that is not quantized: as the recipe says, else that of torch.autocast where it is on, else `default`."""
    recipe = current_recipe()
    if recipe is not None and recipe.high_precision_format is not None:
        return DTYPES[recipe.high_precision_format]
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else default


def recipe_text(where: str, parameter: torch.Tensor) -> str:
    """Recipe that a layer with this parameter computes under, as the operators read it."""
    wide = format_of(where, high_precision_dtype(parameter.dtype))
    scope = innermost_scope()
    return f'"{wide}"' if scope is None or scope.recipe is None else scope.texts[wide]


def _reducing_ranks(group: Any) -> Ranks | None:
    """None where there is nobody to reduce with. group None: all ranks, where there are several processes at all."""
    if group is None and not is_initialized():
        return None
    ranks = ranks_of("autocast", "fp8_group (amax_reduction_group)", group)
    return ranks if ranks.size > 1 else None


class autocast(ContextDecorator, _scope.Scope):
    """Modules inside compute under `recipe` (None: DelayedScaling()); with enabled=False in high precision.

    Belongs to the thread; the inner of two scopes holds inside it. A backward pass uses the recipe of its forward pass.
    When the outermost enabled scope ends, the scales of inputs and weights follow from what was seen; those of gradients
    when a backward pass ends. Left by an exception, a scope changes no scale; under no_grad nothing is recorded.

    amax_reduction_group: a process group, None for all ranks. At these two ends amaxes under DelayedScaling(reduce_amax=True)
    become the largest of its ranks', so all of them go on with equal scales. Ranks that recorded another number of amaxes
    raise RuntimeError.
    """

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        amax_reduction_group: Any = None,
    ) -> None:
        if calibrating:
            raise NotImplementedError("autocast: calibrating is left out; the first use of a tensor sets its first scale")
        if recipe is not None and not isinstance(recipe, Recipe):
            raise TypeError(f"autocast: expected recipe a plimsoll.common.recipe.Recipe, got {recipe!r}")
        self._arguments = (enabled, calibrating, recipe, amax_reduction_group)
        self._recipe = (DelayedScaling() if recipe is None else recipe) if enabled else None
        if self._recipe is not None:
            self._recipe.check()
            _reducing_ranks(amax_reduction_group)

    def _recreate_cm(self) -> autocast:  # as a decorator: a scope for each call
        return type(self)(*self._arguments)

    def _ranks(self, outer: Scope | None) -> Ranks | None:
        group = self._arguments[3]
        if self._recipe is None:
            return None if outer is None else outer.ranks
        ranks = _reducing_ranks(group)
        if outer is None or not outer.is_enabled:
            return ranks
        if group is not None and ranks != outer.ranks:
            raise ValueError("autocast: expected the fp8_group of the outermost scope, which reduces at its end, got another")
        return outer.ranks

    def _open(self) -> None:
        outer = innermost_scope()
        scope = Scope(self._recipe, outer, self._ranks(outer))
        group, ranks = scope.ranks or (None, 1)
        scope.number = _enter(self._owner, None if self._recipe is None else scope.texts["fp32"], group=group, ranks=ranks)
        _thread.innermost = scope

    def __reduce__(self) -> Any:  # a copy owns its own scopes
        return type(self), self._arguments


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> autocast:
    """:class:`autocast` under the names of Transformer Engine's first releases."""
    return autocast(enabled=enabled, calibrating=calibrating, recipe=fp8_recipe, amax_reduction_group=fp8_group)
