"""Recipes with functions in them, by the number under which C++ asks for them (plimsoll/bind/recipe_functions.cpp)."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

_recipes: list[Any] = []
_numbers: dict[Any, int] = {}


def number_of(recipe: Any) -> int:
    """One for each value of a recipe. Its functions live as long as the process, since a graph may outlive the recipe."""
    key = (type(recipe), *(_identity(getattr(recipe, field.name)) for field in fields(recipe)))
    if key not in _numbers:
        _numbers[key] = len(_recipes)
        _recipes.append(copy.copy(recipe))
    return _numbers[key]


def _identity(value: Any) -> Any:
    """Text of a value, or address of a function, which nobody else gets while the registry keeps it: two may print alike."""
    if inspect.ismethod(value):  # made anew by each access
        return id(value.__self__), id(value.__func__)
    return id(value) if callable(value) else repr(value)


def recipe_of(number: int) -> Any:
    return _recipes[number]


def takes_margin(function: Callable[..., Any]) -> bool:
    """Whether the fourth argument of a scaling_factor_compute_algo is called margin; Transformer Engine hands the recipe."""
    names = list(inspect.signature(function).parameters)
    return len(names) >= 4 and names[3] == "margin"
