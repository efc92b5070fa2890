"""Gradients that go to the one rank that has their optimizer state (ZeRO-2), with fairscale's interface."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.oss import OSS
from plimsoll.shard.ranks import ranks_of


@dataclass(eq=False)
class _Bucket:
    """Gradients of one owner that travel together, and behind them how many ranks have one of each member."""

    owner: int
    members: list[nn.Parameter] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # of the members' elements
    elements: int = 0
    ready: int = 0
    values: torch.Tensor | None = None
    work: Any = None

    def add(self, parameter: nn.Parameter) -> None:
        self.members.append(parameter)
        self.begins.append(self.elements)
        self.elements += parameter.numel()


class ShardedDataParallel(nn.Module):
    """The same module on every rank, each with its part of the batch: after ``backward()`` the averaged gradient of a
    parameter is on the rank alone whose optimizer updates it, and the others have none of it.

    Several ``backward()`` for one step: all but the last inside :meth:`no_sync`.

    Args:
        module: trained by the optimizers, whose parameters are the module's.
        sharded_optimizer: an :class:`OSS`, or a list of them.
        process_group: of torch.distributed; all ranks if None.
        broadcast_buffers: before each forward pass in training the first rank's buffers become everybody's.
        sync_models_at_startup: and its parameters, once.
        reduce_buffer_size: elements that travel together; 0: each gradient by itself.
        auto_refresh_trainable: a change of requires_grad is noticed by the next forward pass; otherwise by
            :meth:`refresh_trainable`.
        reduce_fp16: gradients travel in fp16; without buffers only. Otherwise in fp32, whatever the parameters are.
        warn_on_trainable_params_changed: a warning when requires_grad has changed.
    """

    def __init__(
        self,
        module: nn.Module,
        sharded_optimizer: OSS | list[OSS],
        process_group: Any = None,
        broadcast_buffers: bool = True,
        sync_models_at_startup: bool = True,
        reduce_buffer_size: int = 2**23,
        auto_refresh_trainable: bool = True,
        reduce_fp16: bool = False,
        warn_on_trainable_params_changed: bool = True,
    ) -> None:
        super().__init__()
        self.module = module
        self.sharded_optimizers = [sharded_optimizer] if isinstance(sharded_optimizer, OSS) else list(sharded_optimizer)
        ranks = ranks_of(process_group)
        self.process_group, self.rank, self.world_size = ranks.group, ranks.rank, ranks.size
        self.enable_broadcast_buffers = broadcast_buffers
        self.auto_refresh_trainable = auto_refresh_trainable
        self.warn_on_trainable_params_changed = warn_on_trainable_params_changed
        if reduce_fp16 and reduce_buffer_size > 0:
            logging.warning("reduce_fp16 is off: fp16 gradient reduction is not compatible with reduction buffers")
            reduce_fp16 = False
        self.reduce_fp16 = reduce_fp16
        self._buffer_size = reduce_buffer_size
        self._predivide, self._postdivide = torch.ops.plimsoll.averaging(self.world_size)
        self._synchronizes = True
        self._started = False  # a backward pass is under way
        self._hooks: list[Any] = []
        self._trained: list[nn.Parameter] = []
        if sync_models_at_startup:
            self._broadcast(list(module.state_dict().values()))
        self.refresh_trainable()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.auto_refresh_trainable and self._trained != self._trainable():
            if self.warn_on_trainable_params_changed:
                logging.warning("ShardedDataParallel: the parameters that require gradients have changed")
            self.refresh_trainable()
        if self.enable_broadcast_buffers and self.training:
            self.sync_buffers(blocking=True)
        return self.module(*inputs, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients add up on each rank by itself; the first backward() after it averages what has added up."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def sync_buffers(self, blocking: bool = False) -> None:
        """The first rank's buffers become everybody's."""
        self._broadcast(list(self.module.buffers()))

    @torch.no_grad()
    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        source = dist.get_global_rank(self.process_group, 0)
        works = [dist.broadcast(t.detach(), source, group=self.process_group, async_op=True) for t in tensors]
        for work in works:
            work.wait()

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _owner_of(self, parameter: nn.Parameter) -> int:
        for optimizer in self.sharded_optimizers:
            if parameter in optimizer.param_to_rank:
                return optimizer.param_to_rank[parameter]
        raise RuntimeError(
            f"ShardedDataParallel: expected each trained parameter in an optimizer, got one of shape {tuple(parameter.shape)} in none"
        )

    def refresh_trainable(self) -> None:
        """After requires_grad of a parameter has changed, on all ranks alike."""
        for hook in self._hooks:
            hook.remove()
        self._trained = self._trainable()
        self._fill_buckets()
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._ready) for parameter in self._trained]

    def _fill_buckets(self) -> None:
        """In reverse order, which is about that of backward(), and sent in the order in which they are full."""
        buckets: list[_Bucket] = []
        last: dict[_Bucket, int] = {}
        taking: dict[int, _Bucket] = {}
        for place, parameter in enumerate(reversed(self._trained)):
            owner = self._owner_of(parameter)
            bucket = taking.get(owner)
            if bucket is None or bucket.elements + parameter.numel() > self._buffer_size:
                bucket = taking[owner] = _Bucket(owner)
                buckets.append(bucket)
            bucket.add(parameter)
            last[bucket] = place
        self._buckets = sorted(buckets, key=last.__getitem__)
        self._places = {p: (bucket, place) for bucket in buckets for place, p in enumerate(bucket.members)}

    def _start(self) -> None:
        self._started, self._next, self._settled = True, 0, 0
        for bucket in self._buckets:
            bucket.ready, bucket.values, bucket.work = 0, None, None
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # type: ignore[attr-defined]

    @torch.no_grad()
    def _ready(self, parameter: nn.Parameter) -> None:
        if not self._synchronizes:
            return
        if not self._started:
            self._start()
        bucket, place = self._places[parameter]
        self._part(bucket, place).copy_(parameter.grad).div_(self._predivide)  # type: ignore[arg-type]
        bucket.values[bucket.elements + place] = 1  # type: ignore[index]
        if bucket.owner != self.rank:
            parameter.grad = None
        bucket.ready += 1
        while self._next < len(self._buckets) and self._buckets[self._next].ready == len(self._buckets[self._next].members):
            self._send()

    def _part(self, bucket: _Bucket, place: int) -> torch.Tensor:
        if bucket.values is None:
            dtype = torch.float16 if self.reduce_fp16 else torch.float32
            bucket.values = torch.zeros(bucket.elements + len(bucket.members), dtype=dtype)
        member, begin = bucket.members[place], bucket.begins[place]
        return bucket.values[begin : begin + member.numel()].view_as(member)

    def _send(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        self._part(bucket, 0)
        target = dist.get_global_rank(self.process_group, bucket.owner)
        bucket.work = dist.reduce(bucket.values, target, group=self.process_group, async_op=True)
        # The memory of what has arrived is given back while the rest is computed.
        if self._next - self._settled > 2:
            self._settle()

    @torch.no_grad()
    def _finish(self) -> None:
        while self._next < len(self._buckets):
            self._send()
        while self._settled < len(self._buckets):
            self._settle()
        self._started = False

    def _settle(self) -> None:
        bucket = self._buckets[self._settled]
        self._settled += 1
        bucket.work.wait()
        for place, parameter in enumerate(bucket.members):
            if bucket.owner != self.rank:
                parameter.grad = None
            elif bucket.values[bucket.elements + place] > 0:  # type: ignore[index]
                average = self._part(bucket, place).div_(self._postdivide)
                if parameter.grad is None:
                    parameter.grad = average.to(parameter.dtype, copy=True)
                else:
                    parameter.grad.copy_(average)
        bucket.values = None
