"""Process groups as scopes and modules take them, and random states for ranks that share a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

MODEL_PARALLEL = "model-parallel-rng"


class NamedGroup(NamedTuple):
    """A process group as operators take it, which are traced: by name, not as an object of C++ as plimsoll.shard.ranks has it."""

    name: str
    size: int


def is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def named_group(where: str, argument: str, group: Any) -> NamedGroup:
    """group: of torch.distributed, None for all its ranks. Errors name the argument."""
    if not is_initialized():
        raise ValueError(f"{where}: expected {argument} a group of an initialised torch.distributed, got {group!r} before that")
    chosen = torch.distributed.group.WORLD if group is None else group
    if chosen is torch.distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{where}: expected {argument} a group that holds this rank, got one that does not")
    if not isinstance(chosen, torch.distributed.ProcessGroup):
        raise TypeError(f"{where}: expected {argument} a torch.distributed.ProcessGroup, got {group!r}")
    return NamedGroup(chosen.group_name, chosen.size())


def set_tensor_model_parallel_attributes(tensor: torch.Tensor, is_parallel: bool, dim: int, stride: int) -> None:
    """The marks by which Megatron-LM knows a parameter that each rank has a part of: of dimension `dim`."""
    tensor.tensor_model_parallel = is_parallel  # type: ignore[attr-defined]
    tensor.partition_dim = dim  # type: ignore[attr-defined]
    tensor.partition_stride = stride  # type: ignore[attr-defined]


class CudaRNGStatesTracker:
    """Named random states, of the CPU here; Transformer Engine's name, so that scripts find it.

    Ranks that share a module add() one under another seed each: what they draw inside fork() differs, and what they draw
    outside is the same on all of them.
    """

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        if seed in self.seeds_:
            raise RuntimeError(f"CudaRNGStatesTracker.add: expected a new seed, got {seed} again")
        if name in self.states_:
            raise RuntimeError(f"CudaRNGStatesTracker.add: expected a new name, got '{name}' again")
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Inside, random numbers come from the state `name` and move it on."""
        if name not in self.states_:
            raise RuntimeError(f"CudaRNGStatesTracker.fork: expected one of {sorted(self.states_)}, got '{name}'")
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)
