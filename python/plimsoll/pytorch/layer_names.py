"""Paths of layers in the user's model, as reports and the recipe Auto know them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

# Names under which modules that only wrap another have it: torch.compile, FullyShardedDataParallel, torch's wrapper for checkpoints.
_WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module"}


class WithProducts:
    """A module with matrix products that have state in the library, by keys."""

    name: str | None = None
    _keys: dict[str, torch.Tensor]

    def name_products(self, path: str) -> None:
        """Names them by the module's `name`, if it was given one, else by its path."""
        name = self.name or path
        for prefix, key in self._keys.items():
            torch.ops.plimsoll.name_product(key, f"{name}.{prefix.rstrip('_')}".rstrip("."))


def hook(method: Callable[[torch.nn.Module], None]) -> Callable[..., None]:
    """A hook that calls it as long as its object lives; in a compiled graph it does nothing."""
    of = weakref.WeakMethod(method)

    def called(module: torch.nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling() and (call := of()) is not None:
            call(module)

    return called


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module in DistributedDataParallel and its like, compiled or not."""
    while list(module._modules) in (["module"], ["_orig_mod"]):
        (module,) = module.children()
    return module


def _path_without_wrappers(path: str) -> str:
    return ".".join(name for name in path.split(".") if name not in _WRAPPED)


class LayerNames:
    """While this object lives, a module that is called names its layers: by their `name`, if they were given one, else by
    their path in the outermost module called, as `named_modules()` has it there."""

    def __init__(self) -> None:
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        weakref.finalize(self, register_module_forward_pre_hook(hook(self.see)).remove)

    def see(self, module: torch.nn.Module) -> None:
        """A module that is called."""
        if module not in self._paths:
            self.find_paths(module)

    def find_paths(self, outermost: torch.nn.Module) -> None:
        """Names every part that has no name yet by its path there."""
        for path, part in _unwrapped(outermost).named_modules():
            if part in self._paths:
                continue
            path = _path_without_wrappers(path) or type(part).__name__
            if isinstance(part, WithProducts):
                part.name_products(path)
            self._paths[part] = self._kept(part, path)
        self._paths.setdefault(outermost, "")

    def _kept(self, part: torch.nn.Module, path: str) -> str:
        return path
