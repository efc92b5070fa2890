"""Rules of the user for operators that have none, or have another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from plimsoll._torch_internals import tree_leaves, tree_map
from plimsoll.autoscale.packing import ScaledArray
from plimsoll.autoscale.session import session_of
from plimsoll.autoscale.tensors import get_data_scale, is_scaled

_F = TypeVar("_F", bound=Callable[..., Any])

_ops = torch.ops.plimsoll
_libraries: list[torch.library.Library] = []  # a rule lasts as long as its library


def _entering(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return ScaledArray(*get_data_scale(x))


def _leaving(x: Any, session: Any) -> Any:
    return _ops.autoscale_result(x.data, torch.as_tensor(x.scale), session) if isinstance(x, ScaledArray) else x


def rule(op: str) -> Callable[[_F], _F]:
    """The decorated function is what an operator does to scaled tensors, from now on::

        @autoscale.rule("mylib::scale_free_sort")
        def _(x):
            return ScaledArray(torch.ops.mylib.scale_free_sort(x.data), x.scale)

    op: "library::name" or "library::name.overload". The function gets the operator's arguments, with a ScaledArray for each
    floating point tensor (a plain one has the scale 1; scales are Python's numbers, or tensors where there are several), and
    returns the same for results, with scales that need not be powers of two; anything else stays what it is. It runs below
    autograd: the operator's own backward formula leads to operators that have rules, too. Data that the scale does not bring
    into range are moved there.
    """
    if "::" not in op:
        raise ValueError(f"rule: expected an operator as library::name, got {op!r}")

    def register(function: _F) -> _F:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            session = session_of(next(x for x in tree_leaves((args, kwargs)) if is_scaled(x)))
            result = function(*tree_map(_entering, args), **tree_map(_entering, kwargs))
            session.count(op)
            return tree_map(lambda x: _leaving(x, session), result)

        library = torch.library.Library(op.split("::")[0], "IMPL")
        library.impl(op.split("::")[1], run, "Fake", allow_override=True)
        _libraries.append(library)
        return function

    return register
