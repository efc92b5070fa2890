"""The process groups that shards are spread over."""

from __future__ import annotations

import atexit
import functools
import pickle
import time
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from plimsoll.pytorch.distributed import is_initialized

_own: dict[str, tuple[Any, Ranks]] = {}  # a group and its ranks' second order, by the group's name


class ProcessGroupName(str, Enum):  # noqa: UP042  fairscale's: str() of a StrEnum is another
    default = "default"
    reduce_scatter = "reduce_scatter"


@functools.cache
def _pause_before_the_end() -> None:
    """Gloo's threads let go of the tensors of a collective a moment after it has ended, and for a tensor that Python holds, too,
    they take the interpreter's lock. One that waits for it when the interpreter begins to end aborts the process; torch's own
    remedy, that the group goes with destroy_process_group(), fails where an optimizer or a module keeps the group."""
    atexit.register(time.sleep, 0.02)


class Ranks:
    """A process group as C++'s engines take it (`handle`), and the group itself, for torch.distributed."""

    def __init__(self, handle: Any, group: Any = None) -> None:
        self.handle, self.group = handle, group
        self.rank: int = handle.rank()
        self.size: int = handle.size()

    def split(self, name: str) -> Ranks:
        """The same ranks of a Gloo group with an order of collectives of their own. A collective."""
        return Ranks(self.handle.split(name), self.group)

    def gather(self, value: Any, recipient: int | None = None) -> list[Any] | None:
        """Values of all ranks, in order, at the recipient (None: on all ranks); elsewhere None. A collective."""
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        parts = self.handle.gather(mine, recipient)
        return [pickle.loads(part.numpy()) for part in parts] if recipient in (None, self.rank) else None


def ranks_of(group: Any) -> Ranks:
    """group: of torch.distributed; None: all its ranks. Another object with rank() and size() stands for a rank that reaches
    no other, for which torch.distributed need not be there."""
    if group is not None and not isinstance(group, dist.ProcessGroup) and _tells_rank_and_size(group):
        return Ranks(torch.classes.plimsoll.Ranks.unconnected(group.rank(), group.size()), group)
    if not is_initialized():
        raise RuntimeError("plimsoll.shard: expected torch.distributed to be initialised, which init_process_group does")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise TypeError(f"plimsoll.shard: expected a torch.distributed.ProcessGroup that holds this rank, got {group!r}")
    _pause_before_the_end()
    return Ranks(torch.classes.plimsoll.Ranks(chosen.group_name), chosen)


def _tells_rank_and_size(group: Any) -> bool:
    return callable(getattr(group, "rank", None)) and callable(getattr(group, "size", None))


def this_process_alone() -> Ranks:
    return Ranks(torch.classes.plimsoll.Ranks(""))


def own_group(ranks: Ranks, which: Any, device: torch.device | None = None) -> Ranks:
    """The same ranks with an order of collectives of their own, so that gradients may travel in another order than parameters;
    or `ranks`, or the group given. A collective. Gradients on another device than the CPU (None) have the order of `ranks`, unless
    a group is given: torch's new_group names groups by how many a process has, so that it may hang where ranks have differently many."""
    if isinstance(which, dist.ProcessGroup) or _tells_rank_and_size(which):
        return ranks_of(which) if which.size() == ranks.size else ranks
    if which not in tuple(ProcessGroupName):
        raise TypeError("unsupported type for reduce_scatter process group")
    if which == ProcessGroupName.default or ranks.size == 1 or not isinstance(ranks.group, dist.ProcessGroup):
        return ranks
    if (device is not None and device.type != "cpu") or dist.get_backend(ranks.group) != "gloo":
        return ranks
    known = _own.get(ranks.group.group_name)
    if known is None or known[0] is not ranks.group:
        _own[ranks.group.group_name] = known = (ranks.group, ranks.split("gradients"))
    return known[1]
