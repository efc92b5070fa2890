"""A model larger than its device: slices compute one after the other and wait elsewhere in between; fairscale's names."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from plimsoll.pytorch.checkpoint import checkpoint as recompute
from plimsoll.shard.activation_checkpoint import StatisticsKept
from plimsoll.shard.offload_places import Copies, MappedFiles, Place, owned_by
from plimsoll.shard.tensors import map_tensors, tensors_in


def split_evenly(sizes: list[int], parts: int) -> list[range]:
    """Neighbours stay together; the largest part is as small as it can be, none is empty."""
    # least[k][n]: the largest of k parts of the first n sizes, and where the last of them begins.
    totals = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    least = [{0: (0, 0)}]
    for part in range(1, parts + 1):
        row = {}
        for end in range(part, len(sizes) + 1):
            choices = [(max(least[-1][begin][0], totals[end] - totals[begin]), begin) for begin in least[-1] if begin < end]
            row[end] = min(choices)
        least.append(row)
    ranges, end = [], len(sizes)
    for part in range(parts, 0, -1):
        begin = least[part][end][1]
        ranges.append(range(begin, end))
        end = begin
    return ranges[::-1]


def sliced(model: nn.Sequential, count: int) -> list[nn.Sequential]:
    """Slices of about as many parameters each."""
    layers = list(model)
    sizes = [sum(each.numel() for each in owned_by(layer)) for layer in layers]
    return [nn.Sequential(*(layers[number] for number in part)) for part in split_evenly(sizes, min(count, len(layers)))]


def emptied(value: Any) -> Any:
    return map_tensors(value, lambda _: torch.empty(0))


def filled(empty: Any, tensors: Sequence[torch.Tensor]) -> Any:
    rest = iter(tensors)
    return map_tensors(empty, lambda _: next(rest))


def place_for(slices: list[nn.Module], device: torch.device, home: torch.device, path: Path | None) -> Place:
    if device.type != "cpu":
        return Copies(slices, device, home)
    return MappedFiles(slices, Path(tempfile.gettempdir()) if path is None else Path(path))


class _Pass:
    """One slice's work on one input: its graph, until backward goes through it."""

    def __init__(self, model: OffloadModel, index: int, value: Any) -> None:
        self.result: Any = None  # like what the slice returned, without the tensors
        self._model, self._index = model, index
        self._value = emptied(value)
        self._input_gradients: dict[int, torch.Tensor] = {}
        self._edges: list[list[GradientEdge | None]] | None = None  # of each microbatch and output
        self._sizes: list[list[int]] = []  # of each output and microbatch

    def forward(self, trigger: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        model, count = self._model, self._model._num_microbatches
        entered = [
            _Entry.apply(partial(self._arrived, number), trigger, each.detach())  # type: ignore[no-untyped-call]
            for number, each in enumerate(tensors)
        ]
        parts = [entered] if count == 1 else list(zip(*(each.chunk(count) for each in entered), strict=False))
        results = [model._run_for_backward(self._index, filled(self._value, part)) for part in parts]
        outputs = [tensors_in(result) for result in results]
        self.result = emptied(results[0])
        self._edges = [[get_gradient_edge(each) if each.requires_grad else None for each in output] for output in outputs]
        self._sizes = [[len(each) if each.dim() > 0 else 1 for each in same] for same in zip(*outputs, strict=False)]
        return [
            torch.cat([each.detach() for each in same]) if count > 1 else same[0].detach() for same in zip(*outputs, strict=False)
        ]

    def is_differentiable(self, output: int) -> bool:
        return self._edges is not None and self._edges[0][output] is not None

    def backward(self, gradients: tuple[torch.Tensor, ...]) -> dict[int, torch.Tensor]:
        if self._edges is None:
            raise RuntimeError("OffloadModel: expected one backward through each forward, got a second")
        edges, self._edges = self._edges, None
        parts = [each.split(sizes) if len(edges) > 1 else [each] for each, sizes in zip(gradients, self._sizes, strict=False)]
        with self._model._gradients_of(self._index):
            for microbatch, outputs in enumerate(edges):
                pairs = [(edge, part[microbatch]) for edge, part in zip(outputs, parts, strict=False) if edge is not None]
                torch.autograd.backward([edge for edge, _ in pairs], [gradient for _, gradient in pairs])
        return self._input_gradients

    def _arrived(self, number: int, gradient: torch.Tensor) -> None:
        before = self._input_gradients.get(number)
        self._input_gradients[number] = gradient if before is None else before + gradient


class _Entry(torch.autograd.Function):
    """An input of a slice's own graph, which does not keep it."""

    @staticmethod
    def forward(ctx: Any, arrived: Any, trigger: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.arrived = arrived
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        ctx.arrived(gradient)
        return None, None, None


class _Through(torch.autograd.Function):
    """A slice in the graph of the whole model."""

    @staticmethod
    def forward(ctx: Any, one: _Pass, trigger: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.one = one
        with torch.enable_grad():
            outputs = one.forward(trigger, tensors)
        ctx.mark_non_differentiable(*(each for number, each in enumerate(outputs) if not one.is_differentiable(number)))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        arrived = ctx.one.backward(gradients)
        return None, None, *(arrived.get(number) for number in range(len(ctx.needs_input_grad) - 2))


class OffloadModel(nn.Module):
    """A torch.nn.Sequential of which at most two slices at a time are on `device`: one computes, the next is on its way. Or
    of a list of modules, which are the slices, and where a tuple that one returns is the arguments of the next.

    Parameters and their gradients wait on `offload_device`; where the device is the CPU itself, in files under `offload_path`
    (default: the system's folder for temporary files) that are mapped into memory. They are there between steps, too: make
    the optimizer after this. checkpoint_activation: of each slice, only what it is given waits for backward, there as well,
    and the rest is made again, `num_microbatches` times for a part of the batch; losses and gradients are those of the
    whole, but batch norms and random numbers see parts. One backward through each forward.
    """

    def __init__(
        self,
        model: Any = None,
        device: torch.device | str | None = None,
        offload_device: torch.device | str = torch.device("cpu"),  # noqa: B008  fairscale's, and never written to
        num_slices: int = 3,
        checkpoint_activation: bool = False,
        num_microbatches: int = 1,
        offload_path: str | Path | None = None,
    ) -> None:
        super().__init__()
        if not model or device is None:
            raise TypeError(f"OffloadModel: expected a model and a device, got {'no device' if model else 'no model'}")
        if not isinstance(model, (nn.Sequential, list)):
            raise TypeError(f"OffloadModel: expected a torch.nn.Sequential or a list of modules, got {type(model).__name__}")
        if num_slices < 1 or num_microbatches < 1:
            raise ValueError(f"OffloadModel: expected slices and microbatches, got {num_slices} and {num_microbatches}")
        if num_microbatches > 1 and not checkpoint_activation:
            raise RuntimeError("OffloadModel: expected checkpoint_activation=True with num_microbatches > 1")
        device, home = torch.device(device), torch.device(offload_device)
        if home.type != "cpu":
            raise ValueError(f"OffloadModel: expected offload_device on the CPU, got {home}")
        if offload_path is not None and device.type != "cpu":
            raise ValueError(f"OffloadModel: expected an offload_path only with a device on the CPU, got {device}")
        self.model_slices = nn.ModuleList(model if isinstance(model, list) else sliced(model, num_slices))
        self._takes_tuples = isinstance(model, list)
        path = None if offload_path is None else Path(offload_path)
        self._make_place = partial(place_for, device=device, home=home, path=path)
        self._place = self._make_place(list(self.model_slices))
        self._checkpoint_activation = checkpoint_activation
        self._num_microbatches = num_microbatches
        self._trigger = torch.ones((), requires_grad=True)  # backward goes through slices whose inputs ask for no gradient

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadModel:
        """A model in a place of its own, in which its slices wait as these do in theirs."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy({name: part for name, part in self.__dict__.items() if name != "_place"}, memo))
        made._place = made._make_place(list(made.model_slices))
        return made

    def forward(self, *inputs: Any) -> Any:
        value = inputs if len(inputs) != 1 else inputs[0]
        for index in range(len(self.model_slices)):
            self._place.enter(index, index + 1)
            try:
                value = self._through(index, value) if torch.is_grad_enabled() else self._run(index, value)
            finally:
                self._place.leave(index)
        return value

    def _through(self, index: int, value: Any) -> Any:
        one = _Pass(self, index, value)
        outputs = _Through.apply(one, self._trigger, *tensors_in(value))  # type: ignore[no-untyped-call]
        return filled(one.result, outputs)

    def _run(self, index: int, value: Any) -> Any:
        module = self.model_slices[index]
        return module(*value) if isinstance(value, tuple) and (self._takes_tuples or index == 0) else module(value)

    def _run_for_backward(self, index: int, value: Any) -> Any:
        if not self._checkpoint_activation:
            with self._place.inner_graph(index):
                return self._run(index, value)
        empty, contexts = emptied(value), lambda: (nullcontext(), StatisticsKept(self.model_slices[index]))
        with saved_tensors_hooks(self._place.keep, self._place.give):
            return recompute(lambda *tensors: self._run(index, filled(empty, tensors)), *tensors_in(value), context_fn=contexts)

    @contextmanager
    def _gradients_of(self, index: int) -> Iterator[None]:
        aside = self._place.take_gradients(index)
        self._place.enter(index, index - 1)
        try:
            yield
        finally:
            new = self._place.take_gradients(index)
            self._place.leave(index)
            self._place.set_gradients(index, aside, new)
