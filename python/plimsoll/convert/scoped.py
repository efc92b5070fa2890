"""A model whose forward pass is a scope of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from plimsoll.common.recipe import Recipe
from plimsoll.pytorch.autocast import autocast, name_layers


class Scoped(torch.nn.Module):
    """Base of the classes that scoped_class() makes."""

    _scope_recipe: Recipe
    _unscoped: type[torch.nn.Module]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # no import finds the class
        return _new, (self._unscoped,), self.__getstate__()  # type: ignore[no-untyped-call]


def _new(unscoped: type[torch.nn.Module]) -> torch.nn.Module:
    kind = scoped_class(unscoped)  # type: ignore[arg-type]  # mypy: a type has no hash
    return kind.__new__(kind)


@functools.cache
def _scope_class() -> Callable[[Scoped], AbstractContextManager[None]]:
    """autocast, out of torch.compile's sight. Made late, because torch.compiler.disable imports what takes a second."""

    class Scope(AbstractContextManager[None]):
        def __init__(self, model: Scoped) -> None:
            self._model = model

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def __enter__(self) -> None:
            self._autocast = autocast(recipe=self._model._scope_recipe)
            self._autocast.__enter__()
            name_layers(self._model)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def __exit__(self, *error: Any) -> None:
            self._autocast.__exit__(*error)

    return Scope


@functools.cache
def scoped_class(unscoped: type[torch.nn.Module]) -> type[Scoped]:
    """A subclass with its name and its forward's signature, which others look at."""

    scope = _scope_class()

    # torch.compile goes on with the frame of the unscoped forward: the scope is around its graph.
    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def forward(self: Scoped, *arguments: Any, **keywords: Any) -> Any:
        with scope(self):
            return unscoped.forward(self, *arguments, **keywords)

    functools.update_wrapper(forward, unscoped.forward)
    members = {"forward": forward, "_unscoped": unscoped, "__module__": unscoped.__module__, "__doc__": unscoped.__doc__}
    return type(unscoped.__name__, (Scoped, unscoped), members)


def enter_scope(module: torch.nn.Module, recipe: Recipe) -> None:
    """From now on, forward runs under the recipe; another one replaces it."""
    module.__dict__["_scope_recipe"] = recipe
    if not isinstance(module, Scoped):
        module.__class__ = scoped_class(type(module))  # type: ignore[arg-type]  # mypy: a type has no hash


def leave_scope(module: Scoped) -> None:
    del module.__dict__["_scope_recipe"]
    module.__class__ = module._unscoped  # type: ignore[assignment]  # not Scoped from here on
