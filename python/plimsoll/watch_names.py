"""Paths of our layers in the user's model, for the watch's reports."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from plimsoll.pytorch.scaled_module import ScaledModule


def _name(module: ScaledModule, path: str) -> None:
    name = getattr(module, "name", None) or path or type(module).__name__
    for prefix, key in module._keys.items():
        torch.ops.plimsoll.name_product(key, f"{name}.{prefix.rstrip('_')}".rstrip("."))


def _is_layer_of_torch(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and any(weight is not None for weight in module._parameters.values())


class NamedLayers:
    """While this object lives, a module that is called names its layers: by their `name`, if they were given one, else by
    their path in the outermost module called, as `named_modules()` has it. Layers of torch.nn, which no watch observes, go to
    `plain`: their path and class."""

    def __init__(self, plain: list[tuple[str, str]]) -> None:
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._plain = plain
        before = weakref.WeakMethod(self._before)

        def hook(module: torch.nn.Module, arguments: Any) -> None:
            if (names := before()) is not None:
                names(module, arguments)

        weakref.finalize(self, register_module_forward_pre_hook(hook).remove)

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if module in self._seen:
            return
        for path, part in module.named_modules():
            if isinstance(part, ScaledModule) and part not in self._seen:
                _name(part, path)
            elif _is_layer_of_torch(part) and part not in self._seen:
                self._plain.append((path or "the module called", type(part).__name__))
            self._seen.add(part)
