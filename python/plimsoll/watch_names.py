"""Paths of layers in the user's model, for reports of the watch and of audits."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from plimsoll import _scope
from plimsoll.pytorch.scaled_module import ScaledModule

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def _name(module: ScaledModule, path: str) -> None:
    name = getattr(module, "name", None) or path
    for prefix, key in module._keys.items():
        torch.ops.plimsoll.name_product(key, f"{name}.{prefix.rstrip('_')}".rstrip("."))


def _is_ours(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "plimsoll"


def _is_layer_of_torch(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and not module._modules


def _hook(method: Callable[[torch.nn.Module], None]) -> Callable[..., None]:
    """A hook that calls it as long as its object lives; in a compiled graph it does nothing."""
    of = weakref.WeakMethod(method)

    def hook(module: torch.nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling() and (call := of()) is not None:
            call(module)

    return hook


class NamedLayers:
    """While this object lives, a module that is called names its layers: by their `name`, if they were given one, else by
    their path in the outermost module called, as `named_modules()` has it. Modules that are not ours have their path while
    they run, for what torch computes in them."""

    def __init__(self) -> None:
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        for handle in (
            register_module_forward_pre_hook(_hook(self._enter)),
            register_module_forward_hook(_hook(self._stop)),
            register_module_forward_hook(_hook(self._leave), always_call=True),
        ):
            weakref.finalize(self, handle.remove)

    def _enter(self, module: torch.nn.Module) -> None:
        if module not in self._paths:
            self.find_paths(module)
        if not isinstance(module, _CONTAINERS):
            torch.ops.plimsoll.enter_module(self._paths[module], is_layer=_is_layer_of_torch(module))

    def _leave(self, module: torch.nn.Module) -> None:
        if not isinstance(module, _CONTAINERS) and module in self._paths:
            torch.ops.plimsoll.leave_module(self._paths[module])

    def _stop(self, _: torch.nn.Module) -> None:
        torch.ops.plimsoll.stop_at_incident()

    def find_paths(self, outermost: torch.nn.Module) -> None:
        """Names every part that has no name yet by its path there."""
        for path, part in outermost.named_modules():
            if part in self._paths:
                continue
            path = path or type(part).__name__
            if isinstance(part, ScaledModule):
                _name(part, path)
            self._paths[part] = "" if _is_ours(part) else path


class Naming(_scope.Scope):
    """A scope in which modules name their layers."""

    _names: NamedLayers | None = None

    def _is_in_force(self) -> bool:
        raise NotImplementedError

    def _keep(self, names: NamedLayers | None) -> None:
        """Names layers until the scope has been left."""
        self._names = names
        _naming.add(self)


_naming: weakref.WeakSet[Naming] = weakref.WeakSet()  # those that have named layers since they were entered


def _stop_naming() -> None:
    for each in [each for each in _naming if not each._is_in_force()]:
        each._names = None
        _naming.discard(each)


_scope.after_leaving.append(_stop_naming)
