"""Paths of layers in the user's model, for reports of the watch and of audits."""

from __future__ import annotations

import weakref

import torch
from torch.nn.modules.module import register_module_forward_hook

from plimsoll import _scope
from plimsoll.pytorch.layer_names import LayerNames, hook

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def _is_ours(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "plimsoll"


def _is_layer_of_torch(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and not module._modules


class NamedLayers(LayerNames):
    """Modules that are not ours have their path while they run besides, for what torch computes in them."""

    def __init__(self) -> None:
        super().__init__()
        for handle in (
            register_module_forward_hook(hook(self._stop)),
            register_module_forward_hook(hook(self._leave), always_call=True),
        ):
            weakref.finalize(self, handle.remove)

    def see(self, module: torch.nn.Module) -> None:
        super().see(module)
        if not isinstance(module, _CONTAINERS):
            torch.ops.plimsoll.enter_module(self._paths[module], is_layer=_is_layer_of_torch(module))

    def _leave(self, module: torch.nn.Module) -> None:
        if not isinstance(module, _CONTAINERS) and module in self._paths:
            torch.ops.plimsoll.leave_module(self._paths[module])

    def _stop(self, _: torch.nn.Module) -> None:
        torch.ops.plimsoll.stop_at_incident()

    def _kept(self, part: torch.nn.Module, path: str) -> str:
        return "" if _is_ours(part) else path


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
