"""The process groups that shards are spread over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_own: dict[str, tuple[Any, Ranks]] = {}  # of a group, by its name


class ProcessGroupName(str, Enum):
    default = "default"
    reduce_scatter = "reduce_scatter"


class Ranks(NamedTuple):
    name: str
    rank: int
    size: int
    group: Any = None


def ranks_of(group: Any) -> Ranks:
    """group: of torch.distributed; None: all its ranks."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("plimsoll.shard: expected torch.distributed to be initialised, which init_process_group does")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise TypeError(f"plimsoll.shard: expected a torch.distributed.ProcessGroup that holds this rank, got {group!r}")
    return Ranks(chosen.group_name, chosen.rank(), chosen.size(), chosen)


def own_group(ranks: Ranks, which: Any) -> Ranks:
    """The same ranks with an order of collectives of their own, so that gradients may travel in another order than
    parameters; or `ranks`, or the group given."""
    if isinstance(which, dist.ProcessGroup):
        return ranks_of(which) if which.size() == ranks.size else ranks
    if which not in tuple(ProcessGroupName):
        raise TypeError("unsupported type for reduce_scatter process group")
    if which == ProcessGroupName.default or ranks.size == 1 or dist.get_backend(ranks.group) != "gloo":
        return ranks
    known = _own.get(ranks.name)
    if known is None or known[0] is not ranks.group:
        _own[ranks.name] = known = (ranks.group, group_beside(ranks, "shard"))
    return known[1]


def _within(timeout: timedelta, name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, on a thread of its own: calls into a store wait for an answer without a limit, and a process that
    is stopped gives none."""
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    # A second more, in which torch's own error may come.
    done, _ = wait([made], timeout.total_seconds() + 1)
    if not done:
        raise dist.DistBackendError(f"{name}: expected all ranks within {timeout}; one has ended or stands still")
    return made.result()


def group_beside(ranks: Ranks, purpose: str) -> Ranks:
    """The same ranks of a Gloo group with an order of collectives of their own; once for each purpose. dist.new_group would
    need the other ranks of the world, or as many groups on each."""
    name = f"{ranks.name}/plimsoll.{purpose}"
    store = dist.PrefixStore(name, dist.distributed_c10d._get_process_group_store(ranks.group))
    timeout = ranks.group._get_backend(torch.device("cpu")).options._timeout
    kind = dist.ProcessGroup.BackendType.GLOO
    group = dist.ProcessGroup(store, ranks.rank, ranks.size)
    group._set_default_backend(kind)
    backend = _within(timeout, name, lambda: dist.ProcessGroupGloo(store, ranks.rank, ranks.size, timeout))
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_group_name(name)
    torch._C._distributed_c10d._register_process_group(name, group)
    return Ranks(name, ranks.rank, ranks.size, group)
