"""Places where the parameters of a model wait while they do not compute."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from plimsoll.pytorch.scaled_module import ScaledModule

ALIGNMENT = 64


def owned_by(module: nn.Module) -> list[torch.Tensor]:
    """Parameters, then buffers, each once; without the scaling states of layers, which compute on the CPU wherever the
    parameters are."""
    layers = [each for each in module.modules() if isinstance(each, ScaledModule)]
    states = {id(layer.get_buffer(name)) for layer in layers for name in layer._state_names()}
    return [each for each in dict.fromkeys([*module.parameters(), *module.buffers()]) if id(each) not in states]


class Place(ABC):
    """Place where slices wait. Between enter() and leave() a slice can compute; enter() also asks for the slice that
    comes next, and leave() keeps what is still in use by another."""

    def __init__(self, slices: list[nn.Module]) -> None:
        self.tensors = [owned_by(each) for each in slices]

    @abstractmethod
    def enter(self, index: int, then: int) -> None: ...

    @abstractmethod
    def leave(self, index: int) -> None: ...

    @abstractmethod
    def keep(self, tensor: torch.Tensor) -> Any:
        """Handle of which give() makes the tensor again, wherever it waits in between."""

    @abstractmethod
    def give(self, kept: Any) -> torch.Tensor: ...

    @abstractmethod
    def gradient_home(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """A copy of the gradient where the parameter waits."""

    def inner_graph(self, index: int) -> AbstractContextManager[Any]:
        """Around a slice's forward whose graph waits for backward."""
        return nullcontext()

    def take_gradients(self, index: int) -> dict[torch.Tensor, torch.Tensor]:
        """Gradients of a slice's parameters, which then have none."""
        taken = {each: each.grad for each in self.tensors[index] if each.grad is not None}
        for each in taken:
            each.grad = None
        return taken

    def set_gradients(self, index: int, aside: dict[torch.Tensor, torch.Tensor], new: dict[torch.Tensor, torch.Tensor]) -> None:
        """Sets the gradients that were taken aside, which wait where parameters do, and what has been added since."""
        for parameter, gradient in new.items():
            before = aside.pop(parameter, None)
            parameter.grad = (
                self.gradient_home(parameter, gradient) if before is None else before.add_(gradient.to(before.device))
            )
        for parameter, gradient in aside.items():
            parameter.grad = gradient


class Copies(Place):
    """On `home`; slices in use have copies on `device`."""

    def __init__(self, slices: list[nn.Module], device: torch.device, home: torch.device) -> None:
        super().__init__(slices)
        self._device, self._home = device, home
        self._waiting = {each: self._at_home(each.detach()) for tensors in self.tensors for each in tensors}
        self._users = dict.fromkeys(self._waiting, 0)
        self._entered: set[int] = set()
        for tensor, waiting in self._waiting.items():
            tensor.data = waiting

    def _at_home(self, tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.to(self._home, copy=True)
        return there.pin_memory() if self._device.type == "cuda" and self._home.type == "cpu" else there

    def enter(self, index: int, then: int) -> None:
        for each in (index, then):
            if each not in self._entered and 0 <= each < len(self.tensors):
                self._entered.add(each)
                self._fetch(self.tensors[each])

    def _fetch(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if self._users[tensor] == 0:
                tensor.data = self._waiting[tensor].to(self._device, non_blocking=True, copy=True)
            self._users[tensor] += 1

    def leave(self, index: int) -> None:
        self._entered.discard(index)
        for tensor in self.tensors[index]:
            self._users[tensor] -= 1
            if self._users[tensor] == 0:
                waiting = self._waiting[tensor]
                if not isinstance(tensor, nn.Parameter):
                    waiting.copy_(tensor)
                tensor.data = waiting

    def keep(self, tensor: torch.Tensor) -> Any:
        return tensor.device, tensor.detach().to(self._home)

    def give(self, kept: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        device, tensor = kept
        return tensor.to(device, non_blocking=True)

    def gradient_home(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to(self._home)

    def inner_graph(self, index: int) -> AbstractContextManager[Any]:
        """Scope in which the graph keeps a parameter, not its copy on the device, which would be held so."""
        owners = {each.untyped_storage().data_ptr(): each for each in self.tensors[index] if each.requires_grad}

        def pack(tensor: torch.Tensor) -> Any:
            owner = owners.get(tensor.untyped_storage().data_ptr())
            return tensor if owner is None else (owner, tensor.size(), tensor.stride(), tensor.storage_offset())

        def unpack(kept: Any) -> torch.Tensor:
            return kept if isinstance(kept, torch.Tensor) else kept[0].detach().as_strided(*kept[1:])

        return saved_tensors_hooks(pack, unpack)


class _MappedFile:
    """Memory that the file system holds: unnamed, gone with the process."""

    def __init__(self, folder: Path, size: int) -> None:
        size = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise OSError(errno.ENOSPC, f"OffloadModel: expected {size} free bytes on the file system", str(folder)) from None
            self.memory = mmap.mmap(file.fileno(), size)

    def tensor(self, like: torch.Tensor, offset: int) -> torch.Tensor:
        if like.numel() == 0:
            return torch.empty_like(like)
        return torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)

    def expect(self, begin: int, end: int) -> None:
        self._advise(mmap.MADV_WILLNEED, begin, end)

    def release(self, begin: int, end: int) -> None:
        """The process's pages; the file keeps what they hold."""
        self._advise(mmap.MADV_DONTNEED, begin, end)

    def _advise(self, advice: int, begin: int, end: int) -> None:
        if end > begin:
            self.memory.madvise(advice, begin, end - begin)


class MappedFiles(Place):
    """In files that are mapped into memory, parameters and gradients: the system reads what is asked for and may drop the
    rest."""

    def __init__(self, slices: list[nn.Module], folder: Path) -> None:
        super().__init__(slices)
        self._folder = folder
        offsets: dict[torch.Tensor, int] = {}
        self._ranges = []
        end = 0
        for tensors in self.tensors:
            begin = end
            for tensor in tensors:
                if tensor not in offsets:
                    offsets[tensor] = end
                    end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
            end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
            self._ranges.append((begin, end))
        self._offsets = offsets
        self._values, self._gradients = _MappedFile(folder, end), _MappedFile(folder, end)
        for tensor, offset in offsets.items():
            mapped = self._values.tensor(tensor, offset)
            mapped.copy_(tensor.detach())
            tensor.data = mapped
        for begin, end in self._ranges:
            self._values.release(begin, end)

    def enter(self, index: int, then: int) -> None:
        if 0 <= then < len(self._ranges):
            self._values.expect(*self._ranges[then])

    def leave(self, index: int) -> None:
        self._values.release(*self._ranges[index])

    def set_gradients(self, index: int, aside: dict[torch.Tensor, torch.Tensor], new: dict[torch.Tensor, torch.Tensor]) -> None:
        super().set_gradients(index, aside, new)
        self._gradients.release(*self._ranges[index])

    def keep(self, tensor: torch.Tensor) -> Any:
        file = _MappedFile(self._folder, tensor.nbytes)
        mapped = file.tensor(tensor, 0).copy_(tensor.detach())
        file.release(0, len(file.memory))
        return mapped

    def give(self, kept: torch.Tensor) -> torch.Tensor:
        return kept

    def gradient_home(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return self._gradients.tensor(parameter, self._offsets[parameter]).copy_(gradient)
