"""Modules of scaled tensors in files that others read: transformers' save_pretrained(), and pickle."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from plimsoll.autoscale.packing import LOSS_SCALE, REMAINDER, SCALE, ScaledArray
from plimsoll.autoscale.tensors import value


class EnterArguments:
    """Forward pre-hook that scales arguments, except those by name that the module has in _plain_arguments. A copy of the module
    keeps it; pickle, and so torch.save of a module, ends here."""

    def __init__(self, entering: Callable[[Any], Any]) -> None:
        self._entering = entering

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        plain = {name: kwargs[name] for name in getattr(module, "_plain_arguments", ()) if name in kwargs}
        scaled = {name: argument for name, argument in kwargs.items() if name not in plain}
        return self._entering(args), self._entering(scaled) | plain

    def __deepcopy__(self, memo: dict[int, Any]) -> EnterArguments:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "autoscale: expected module.state_dict() in torch.save or pickle, and load_state_dict() into a module that"
            " autoscale() was given, got the module itself"
        )


def values_in(module: torch.nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state dict with each parameter's value in its dtype, and no scales. Shared parameters share the value's memory."""
    names = [name for name in state if name + SCALE in state]
    parameters = dict(module.named_parameters(remove_duplicate=False))
    values = {name: x for name, x in state.items() if not name.endswith(LOSS_SCALE)}
    seen: dict[int, torch.Tensor] = {}
    for name in names:
        scale = values.pop(name + SCALE)
        values.pop(name + REMAINDER, None)
        parameter = parameters.get(name)
        key = id(scale) if parameter is None else id(parameter)
        if key not in seen:
            plain = value(ScaledArray(state[name], scale).tensor())
            seen[key] = plain if parameter is None else plain.to(parameter.dtype)
        values[name] = seen[key]
    return values


def save_values(module: torch.nn.Module) -> None:
    """transformers' save_pretrained() of the module writes values: its reader takes what stands under `weight` for one."""
    save = getattr(type(module), "save_pretrained", None)
    if callable(save) and "state_dict" in inspect.signature(save).parameters:
        module.save_pretrained = functools.partial(_save_pretrained, module)  # type: ignore[assignment]


def _save_pretrained(module: Any, *args: Any, state_dict: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    state = module.state_dict() if state_dict is None else state_dict
    return type(module).save_pretrained(module, *args, state_dict=values_in(module, state), **kwargs)
