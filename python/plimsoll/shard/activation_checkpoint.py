"""Activations made again in backward instead of kept; names and defaults are fairscale's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

from plimsoll._torch_internals import BatchNorm
from plimsoll.pytorch.checkpoint import checkpoint as recompute

Result = TypeVar("Result")


class _Thread(threading.local):
    disabled: bool = False


_thread = _Thread()


@contextmanager
def disable_checkpointing() -> Iterator[None]:
    """Inside, modules of checkpoint_wrapper keep their activations."""
    before, _thread.disabled = _thread.disabled, True
    try:
        yield
    finally:
        _thread.disabled = before


def checkpoint(function: Callable[..., Result], *args: Any, offload_to_cpu: bool = False, **kwargs: Any) -> Result:
    """function(*args, **kwargs), run again in backward with the same bits: plimsoll.pytorch.checkpoint, which takes the same
    keyword arguments. offload_to_cpu: the tensors among the arguments wait for backward in the CPU's memory."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    kept: AbstractContextManager[Any] = save_on_cpu(pin_memory=torch.cuda.is_available()) if offload_to_cpu else nullcontext()
    with kept:
        result: Result = recompute(function, *args, **kwargs)
    return result


class StatisticsKept(AbstractContextManager[None]):
    """Running statistics of batch norms do not change: around a forward that runs again. Each backward pass through a
    retained graph enters it once more."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: list[tuple[nn.Module, str, torch.Tensor]] = []

    def __enter__(self) -> None:
        norms = [each for each in self._module.modules() if isinstance(each, BatchNorm)]
        self._kept = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
        for norm, name, buffer in self._kept:
            setattr(norm, name, buffer.clone())

    def __exit__(self, *error: Any) -> None:
        for norm, name, buffer in self._kept:
            setattr(norm, name, buffer)
        self._kept = []


class _Twice:
    """The forward of a module that backward runs again. Running statistics of batch norms see the first run alone."""

    def __init__(self, module: nn.Module, offload_to_cpu: bool) -> None:
        self.module = module
        self.offload_to_cpu = offload_to_cpu

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _thread.disabled or not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        contexts = lambda: (nullcontext(), StatisticsKept(self.module))
        return checkpoint(self._forward, *args, offload_to_cpu=self.offload_to_cpu, context_fn=contexts, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)


def checkpoint_wrapper(module: nn.Module, offload_to_cpu: bool = False) -> nn.Module:
    """The same module, whose forward keeps what it is given and makes its activations again in backward. State dicts do
    not change. offload_to_cpu: what it is given waits in the CPU's memory."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"checkpoint_wrapper: expected a torch.nn.Module, got {type(module).__name__}")
    module.forward = _Twice(module, offload_to_cpu)
    return module
