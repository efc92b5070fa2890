"""Gradients that travel, while backward() computes the rest of them, to the one rank that has their optimizer state."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.backward_pass import BackwardPass, current_task

_UNDER_WAY = 2  # buckets that travel while the next is filled


@dataclass(eq=False)
class _Bucket:
    """Gradients of one owner that travel together. Behind them travel how many ranks have a gradient of each member, and
    two marks: how many ranks have sent an even number of rounds before this one, and how many an odd number."""

    owner: int
    members: list[nn.Parameter] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # of the members' elements
    elements: int = 0

    def add(self, parameter: nn.Parameter) -> None:
        self.members.append(parameter)
        self.begins.append(self.elements)
        self.elements += parameter.numel()


def _buckets_of(trained: list[nn.Parameter], owner_of: Callable[[nn.Parameter], int], size: int) -> list[_Bucket]:
    """In reverse order, which is about that of backward(), and sent in the order in which they are full."""
    buckets: list[_Bucket] = []
    last: dict[_Bucket, int] = {}
    taking: dict[int, _Bucket] = {}
    for place, parameter in enumerate(reversed(trained)):
        owner = owner_of(parameter)
        bucket = taking.get(owner)
        if bucket is None or bucket.elements + parameter.numel() > size:
            bucket = taking[owner] = _Bucket(owner)
            buckets.append(bucket)
        bucket.add(parameter)
        last[bucket] = place
    return sorted(buckets, key=last.__getitem__)


class _Parcel:
    """A bucket on its way."""

    def __init__(self, bucket: _Bucket, dtype: torch.dtype) -> None:
        self.bucket = bucket
        self.ready = 0  # members whose gradients are in it
        self.work: Any = None
        self._dtype = dtype
        self._values: torch.Tensor | None = None

    @property
    def is_full(self) -> bool:
        return self.ready == len(self.bucket.members)

    @property
    def values(self) -> torch.Tensor:
        if self._values is None:
            self._values = torch.zeros(self.bucket.elements + len(self.bucket.members) + 2, dtype=self._dtype)
        return self._values

    def part(self, place: int) -> torch.Tensor:
        member, begin = self.bucket.members[place], self.bucket.begins[place]
        return self.values[begin : begin + member.numel()].view_as(member)

    @property
    def flags(self) -> torch.Tensor:
        return self.values[self.bucket.elements : -2]

    @property
    def marks(self) -> torch.Tensor:
        return self.values[-2:]

    def drop(self) -> None:
        self._values = None


class _Round:
    """Each bucket travels once, in one order on all ranks: when all before it have left and its gradients are there."""

    def __init__(self, reducer: GradientReducer) -> None:
        self._reducer = reducer
        self._parcels = [_Parcel(bucket, reducer.dtype) for bucket in reducer.buckets]
        self._places = {p: (parcel, place) for parcel in self._parcels for place, p in enumerate(parcel.bucket.members)}
        self._next = self._settled = 0
        self._taken: set[nn.Parameter] = set()
        self._held: dict[nn.Parameter, torch.Tensor] = {}  # memory of the owner's gradients, for their averages

    def has(self, parameter: nn.Parameter) -> bool:
        return parameter in self._taken

    def take(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if gradient.is_sparse:
            shape = tuple(parameter.shape)
            raise RuntimeError(f"ShardedDataParallel: expected dense gradients, got a sparse one of a parameter of shape {shape}")
        parcel, place = self._places[parameter]
        parcel.part(place).copy_(gradient).div_(self._reducer.predivide)
        parcel.flags[place] = 1
        parcel.ready += 1
        self._taken.add(parameter)
        if parcel.bucket.owner == self._reducer.rank:
            self._held[parameter] = gradient

    def send_what_is_full(self) -> None:
        while self._next < len(self._parcels) and self._parcels[self._next].is_full:
            self._send()

    def finish(self) -> None:
        while self._next < len(self._parcels):
            self._send()
        while self._settled < len(self._parcels):
            self._settle()

    def _send(self) -> None:
        parcel = self._parcels[self._next]
        if self._next == 0:
            self._reducer.begun += 1
        self._next += 1
        parcel.marks[self._reducer.begun % 2] = 1
        target = dist.get_global_rank(self._reducer.group, parcel.bucket.owner)
        parcel.work = dist.reduce(parcel.values, target, group=self._reducer.group, async_op=True)
        # The memory of what has arrived is given back while the rest is computed.
        if self._next - self._settled > _UNDER_WAY:
            self._settle()

    def _settle(self) -> None:
        parcel = self._parcels[self._settled]
        self._settled += 1
        parcel.work.wait()
        is_mine = parcel.bucket.owner == self._reducer.rank
        if is_mine and bool((parcel.marks > 0).all()):
            raise RuntimeError(
                "ShardedDataParallel: expected gradients of the same backward pass from each rank, got those of different "
                "ones: an exception ended a pass on some ranks that had sent a part of its gradients; end it on all alike"
            )
        for place, parameter in enumerate(parcel.bucket.members):
            if not is_mine:
                parameter.grad = None
            elif parcel.flags[place] > 0:
                average = parcel.part(place).div_(self._reducer.postdivide)
                self._reducer.put(parameter, average, self._held.get(parameter))
        parcel.drop()


def _while_alive(method: Callable[..., None], *first: Any) -> Callable[..., None]:
    """A parameter outlives the wrapper around its module, whose hooks then do nothing."""
    known = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        bound = known()
        if bound is not None:
            bound(*first, *arguments)

    return call


class GradientReducer:
    """The hooks of trained parameters, and the backward pass that is under way.

    A pass is the outermost one that :meth:`begin` has seen, or else that of the first gradient. Gradients of passes inside
    it, which reentrant checkpoints start, add up on the rank and travel at its end, as those of passes without
    synchronisation do: a parameter has one in each of them. What an earlier pass averaged stays apart from what this
    rank adds, so that it is not averaged again.
    """

    def __init__(self, group: Any, rank: int, size: int, buffer_size: int, dtype: torch.dtype) -> None:
        self.group, self.rank, self.dtype = group, rank, dtype
        self.predivide, self.postdivide = torch.ops.plimsoll.averaging(size)
        self.synchronizes = True  # False: gradients add up on each rank by itself
        self.trained: list[nn.Parameter] = []
        self._frozen: list[nn.Parameter] = []
        self.buckets: list[_Bucket] = []
        self.begun = 0  # rounds of which something was sent
        self._buffer_size = buffer_size
        self._hooks: list[Any] = []
        self._added_up: set[nn.Parameter] = set()  # whose .grad holds what this rank alone has added up
        self._averaged: dict[nn.Parameter, weakref.ref[torch.Tensor]] = {}  # what was put into .grad
        self._forget_pass()

    def train(self, parameters: list[nn.Parameter], owner_of: Callable[[nn.Parameter], int]) -> None:
        """Those of them that require gradients, on all ranks alike. What others have added up, which nobody would average,
        is dropped."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        buckets = _buckets_of(trained, owner_of, self._buffer_size)
        for hook in self._hooks:
            hook.remove()
        for parameter in self._added_up.difference(trained):
            parameter.grad = None
        self._added_up.intersection_update(trained)
        self.trained, self.buckets = trained, buckets
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        self._hooks = []
        for place, parameter in enumerate(trained):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(_while_alive(self._ready)))
            if owner_of(parameter) == self.rank:
                self._hooks.append(parameter.register_hook(_while_alive(self._set_aside, place)))

    def begin(self, *_: Any) -> None:
        """A pass may be under way: what follows of it, in passes inside it too, belongs together."""
        if current_task() >= 0:
            self._pass_under_way()

    def _forget_pass(self) -> None:
        self._pass: BackwardPass | None = None
        self._round: _Round | None = None  # None: nothing is to travel
        self._aside: dict[nn.Parameter, torch.Tensor] = {}  # averages of earlier passes
        # Gradients of passes inside this one whose parameters have had another one in it, which may be there any time.
        self._late: dict[nn.Parameter, torch.Tensor] = {}

    def expect_trained(self) -> None:
        """That nothing requires a gradient which has come to do so since, and which would stay on its rank."""
        count = sum(parameter.requires_grad for parameter in self._frozen)
        if count:
            raise RuntimeError(
                "ShardedDataParallel: expected forward() or refresh_trainable() to notice that requires_grad has changed, got "
                f"{count} parameters that require gradients and that no rank would average"
            )

    def _pass_under_way(self) -> BackwardPass:
        if self._pass is None or not self._pass.is_alive:
            self.expect_trained()
            # After an exception its buckets are as they were, and its gradients incomplete.
            self._forget_pass()
            self._pass = BackwardPass(self._finish)
        return self._pass

    def _has_average(self, parameter: nn.Parameter) -> bool:
        put = self._averaged.get(parameter)
        return put is not None and parameter.grad is not None and put() is parameter.grad

    def _set_aside(self, place: int, _: torch.Tensor) -> None:
        """Called before autograd adds to .grad, or (torch.autograd.grad) does not, after all."""
        parameter = self.trained[place]
        if not self._has_average(parameter):
            return
        if not self.synchronizes:
            raise RuntimeError(
                "ShardedDataParallel: expected no_sync() around all backward() of a step but the last, got one after "
                "gradients had been averaged; clear them first"
            )
        self._pass_under_way()
        self._aside[parameter], parameter.grad = parameter.grad, None  # type: ignore[assignment]

    @torch.no_grad()
    def _ready(self, parameter: nn.Parameter) -> None:
        if not self.synchronizes:
            self._added_up.add(parameter)
            return
        under_way = self._pass_under_way()
        if self._round is None:
            self._round = _Round(self)
        if under_way.task != current_task():
            if self._round.has(parameter):
                self._add_late(parameter)
            else:
                self._added_up.add(parameter)
            return
        self._added_up.discard(parameter)
        self._take(self._round, parameter)
        self._round.send_what_is_full()

    def _add_late(self, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        known = self._late.get(parameter)
        self._late[parameter] = gradient if known is None else known.add_(gradient)  # type: ignore[assignment]

    @staticmethod
    def _take(travels: _Round, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            raise RuntimeError(
                "ShardedDataParallel: expected the gradient that backward() has just computed, got none; another hook has "
                "taken it, as that of a second ShardedDataParallel around the same module does"
            )
        travels.take(parameter, gradient)

    @torch.no_grad()
    def _finish(self) -> None:
        try:
            if self._round is not None:
                self._finish_rounds(self._round)
            for parameter, average in self._aside.items():
                if parameter.grad is None:
                    parameter.grad = average
        finally:
            self._forget_pass()

    def _finish_rounds(self, travels: _Round) -> None:
        """A second one only if a parameter had a gradient in this pass and another one in a pass inside it."""
        for parameter in self._waiting():
            self._take(travels, parameter)
        self._added_up.clear()
        travels.finish()
        if self._late:
            second = _Round(self)
            for parameter, gradient in self._late.items():
                second.take(parameter, gradient)
            second.finish()

    def _waiting(self) -> Iterable[nn.Parameter]:
        return [parameter for parameter in self.trained if parameter in self._added_up and parameter.grad is not None]

    def put(self, parameter: nn.Parameter, average: torch.Tensor, memory: torch.Tensor | None) -> None:
        """Onto what earlier passes have averaged, where nobody has cleared it."""
        before = self._aside.pop(parameter, None)
        if before is None and self._has_average(parameter):
            before = parameter.grad
        if before is not None:
            parameter.grad = before.add_(average)
        elif memory is not None:
            parameter.grad = memory.copy_(average)
        else:
            parameter.grad = average.to(parameter.dtype, copy=True)
        self._averaged[parameter] = weakref.ref(parameter.grad)
