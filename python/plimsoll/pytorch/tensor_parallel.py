"""Modules that the ranks of a process group share: each has a part of the weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll.pytorch.arguments import check_size
from plimsoll.pytorch.distributed import MODEL_PARALLEL, NamedGroup, named_group, set_tensor_model_parallel_attributes
from plimsoll.pytorch.scaled_module import InitializedModule, Initializer

ARGUMENTS = ("tp_group", "tp_size", "sequence_parallel", "get_rng_state_tracker", "rng_tracker_name")


def take_parallel(rest: dict[str, Any]) -> dict[str, Any]:
    """Removes the arguments of tensor parallelism from `rest`; all modules have them, as keywords."""
    return {name: rest.pop(name) for name in ARGUMENTS if name in rest}


class TensorParallel:
    """The arguments of Transformer Engine, checked.

    tp_group: the ranks that share the module; tp_size alone announces how many, for set_tensor_parallel_group to name
    them later. Where shared is False the module is whole on each rank, whatever the group.
    """

    def __init__(
        self,
        where: str,
        shared: bool,
        *,
        tp_group: Any = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
    ) -> None:
        check_size(where, "tp_size", tp_size, 1)
        self.where = where
        self.group: Any = None
        self.ranks: NamedGroup | None = None
        self.size = tp_size if tp_group is None or not shared else named_group(where, "tp_group", tp_group).size
        if tp_size not in (1, self.size):
            raise ValueError(f"{where}: expected tp_size {self.size}, the ranks of tp_group, got {tp_size}")
        if not shared:
            self.size = 1
        self.sequence = bool(sequence_parallel) and self.size > 1
        self.get_rng_state_tracker = get_rng_state_tracker
        self.rng_tracker_name = rng_tracker_name
        if tp_group is not None:
            self.set_group(tp_group)

    def set_group(self, group: Any) -> None:
        self.group = group
        if self.size == 1:
            return
        ranks = named_group(self.where, "tp_group", group)
        if ranks.size != self.size:
            raise ValueError(f"{self.where}: expected tp_group of tp_size={self.size} ranks, got one of {ranks.size}")
        self.ranks = ranks

    def call(self, **more: Any) -> dict[str, Any]:
        """Arguments of an operator: the group, sequence_parallel, and what is given; none for one rank."""
        if self.size == 1:
            return {}
        if self.ranks is None:
            raise RuntimeError(f"{self.where}: expected set_tensor_parallel_group before the first call, tp_size is {self.size}")
        name, size = self.ranks
        return {"tp_group": name, "tp_size": size, "sequence_parallel": self.sequence, **more}

    @property
    def rank(self) -> int:
        """In the group; 0 while there is none."""
        return 0 if self.ranks is None else self.group.rank()

    def part(self, name: str, value: int) -> int:
        """Share of `value` that this rank has."""
        if value % self.size:
            raise ValueError(f"{self.where}: expected {name} that tp_size={self.size} divides, got {value}")
        return value // self.size

    def fork(self) -> AbstractContextManager[Any]:
        """Around what has to be drawn from another random state on each rank."""
        if self.get_rng_state_tracker is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self.get_rng_state_tracker().fork(self.rng_tracker_name or MODEL_PARALLEL)
        return context

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorParallel:
        copied = TensorParallel.__new__(TensorParallel)
        copied.__dict__.update(self.__dict__)  # the same group: it cannot be copied
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "group": None, "ranks": None}  # the process that loads it has groups of its own


@dataclass
class Segments:
    """An initializer of rows that stand for several things, such as queries, keys and values: each rank has a part of
    each of them."""

    initializer: Initializer
    rows: tuple[int, ...]

    def __call__(self, parameter: torch.Tensor) -> Any:
        return self.initializer(parameter)


@dataclass
class PartInitializer:
    """Draws the whole parameter and keeps this rank's part, so that ranks with one random state have together what one
    rank alone would have, and go on with one random state. With a tracker the part alone is drawn, from its state."""

    initializer: Initializer
    parallel: TensorParallel
    dim: int
    segments: tuple[int, ...]  # whole sizes along dim

    def __call__(self, parameter: torch.Tensor) -> None:
        parallel = self.parallel
        if parallel.size == 1 or parallel.get_rng_state_tracker is not None:
            with parallel.fork():
                self.initializer(parameter)
            return
        sizes = list(parameter.shape)
        sizes[self.dim] = sum(self.segments)
        whole = parameter.new_empty(sizes)
        self.initializer(whole)
        parts = [segment.chunk(parallel.size, self.dim)[parallel.rank] for segment in whole.split(self.segments, self.dim)]
        parameter.copy_(torch.cat(parts, self.dim))


class Parallel(torch.nn.Module):
    """tp_group, tp_size, sequence_parallel: as Transformer Engine's modules show them."""

    _parallel: TensorParallel

    @property
    def tp_group(self) -> Any:
        return self._parallel.group

    @property
    def tp_size(self) -> int:
        return self._parallel.size

    @property
    def sequence_parallel(self) -> bool:
        return self._parallel.sequence

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Names the ranks that share this module and those inside it, tp_size of them. Parameters keep their values;
        reset_parameters draws the parts of this rank."""
        for module in self.modules():
            if isinstance(module, Parallel):
                module._parallel.set_group(tp_group)


class ParallelModule(Parallel, InitializedModule):
    """Has parameters that ranks split."""

    def _parallel_marks(self) -> dict[str, int | None]:
        """Parameter -> the dimension that ranks split; None: whole on each rank, with a gradient from its tokens."""
        raise NotImplementedError

    def reset_parameters(self, defer_init: bool = False) -> None:
        super().reset_parameters(defer_init)
        for name, dim in self._parallel_marks().items():
            parameter = self._parameters[name]
            if parameter is None:
                continue
            if dim is None:
                parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
            else:
                set_tensor_model_parallel_attributes(parameter, True, dim, 1)
