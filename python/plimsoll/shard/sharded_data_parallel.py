"""Gradients that go to the one rank that has their optimizer state (ZeRO-2), with fairscale's interface. The work is done in
C++ (plimsoll/shard/data_parallel/reducer.h)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from plimsoll.shard.oss import OSS
from plimsoll.shard.parameter_device import expect_uncompressed_on_device
from plimsoll.shard.ranks import ranks_of
from plimsoll.shard.sharded_checkpoint import Checkpoint, Piece
from plimsoll.shard.tensors import tensors_in


class ShardedDataParallel(nn.Module):
    """The same module on every rank, each with its part of the batch: after ``backward()`` the averaged gradient of a
    parameter is on the rank alone whose optimizer updates it, and the others have none of it.

    Several ``backward()`` for one step: all but the last inside :meth:`no_sync`, or each averaged by itself. Reentrant
    checkpoints inside the module, or around it, change nothing but when gradients travel: at the end. An exception that
    ends ``backward()`` on all ranks leaves incomplete gradients, to be cleared; the next pass is whole.

    Args:
        module: trained by the optimizers, whose parameters are the module's.
        sharded_optimizer: an :class:`OSS`, or a list of them.
        process_group: of torch.distributed; all ranks if None.
        broadcast_buffers: before each forward pass in training the first rank's buffers become everybody's.
        sync_models_at_startup: and its parameters, once.
        reduce_buffer_size: elements that travel together; 0: each gradient by itself.
        auto_refresh_trainable: a change of requires_grad is noticed by the next forward pass; otherwise by
            :meth:`refresh_trainable`, without which a parameter that is trained anew is an error.
        reduce_fp16: gradients travel in fp16; without buffers only. Otherwise in fp32, whatever the parameters are.
        warn_on_trainable_params_changed: a warning when requires_grad has changed.
        compression: "fp16", "bf16" or "fp8" (E4M3, a scale for 128 elements): how gradients travel, with sums in fp32. What
            rounding leaves out of a step's gradients joins those of the next, which takes 4 bytes a parameter on each rank,
            and belongs into checkpoints (:meth:`left_out`).
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
        *,
        compression: str = "none",
    ) -> None:
        super().__init__()
        self.module = module
        self.sharded_optimizers = [sharded_optimizer] if isinstance(sharded_optimizer, OSS) else list(sharded_optimizer)
        self._ranks = ranks_of(process_group)
        self.process_group, self.rank, self.world_size = self._ranks.group, self._ranks.rank, self._ranks.size
        expect_uncompressed_on_device("ShardedDataParallel", compression, module.parameters())
        devices = {parameter.device for parameter in module.parameters()}
        self.is_multi_device_module = len(devices) > 1
        self.device_type = next(iter(devices)).type if devices else "cpu"
        self.enable_broadcast_buffers = broadcast_buffers
        self.auto_refresh_trainable = auto_refresh_trainable
        self.warn_on_trainable_params_changed = warn_on_trainable_params_changed
        if reduce_fp16 and reduce_buffer_size > 0:
            logging.warning("reduce_fp16 is off: fp16 gradient reduction is not compatible with reduction buffers")
            reduce_fp16 = False
        self.reduce_fp16 = reduce_fp16
        dtype = torch.float16 if reduce_fp16 else torch.float32
        self._reducer = torch.ops.plimsoll.gradient_reducer(
            self._ranks.handle, bucket_elements=reduce_buffer_size, reduce_dtype=dtype, compression=compression
        )
        self._trained: dict[nn.Parameter, None] = {}
        self._hooks: list[Any] = []
        if sync_models_at_startup:
            self._broadcast(list(module.state_dict().values()))
        self.refresh_trainable()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._notice_trainable()
        if self.training and any(p.grad is not None and p.grad.requires_grad for p in self._trained):
            raise RuntimeError(
                "ShardedDataParallel: expected gradients that require no gradient themselves, got some of "
                "backward(create_graph=True), which are averaged as they are; clear them first"
            )
        if self.enable_broadcast_buffers and self.training:
            self.sync_buffers(blocking=True)
        if torch.compiler.is_compiling():
            return self.module(*inputs, **kwargs)
        reducer = self._reducer
        reducer.begin()  # a backward pass that runs this again: inside it there will be another one
        result = self.module(*inputs, **kwargs)
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: reducer.begin())
        return result

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients add up on each rank by itself; the first backward() after it averages what has added up."""
        before = self._reducer.set_sync(False)
        try:
            yield
        finally:
            self._reducer.set_sync(before)

    def reduce(self) -> None:
        """Averages now what has added up inside :meth:`no_sync`, for which otherwise the next backward() after it does. A
        collective; RuntimeError where no rank has any."""
        self._reducer.reduce()

    def sync_buffers(self, blocking: bool = False) -> None:
        """The first rank's buffers become everybody's."""
        self._broadcast(list(self.module.buffers()))

    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        self._ranks.handle.broadcast(tensors)

    def left_out(self) -> dict[str, Piece]:
        """Remainders of compressed gradients: a section of a checkpoint, which this rank gives to
        :meth:`CheckpointSaver.save`."""
        return {name: Piece(values, tuple(shape), begin) for name, shape, begin, _, values in self._reducer.left_out()}

    def load_left_out(self, checkpoint: Checkpoint, section: str = "left_out") -> None:
        """The same number of ranks goes on with the bits of those that saved, another one with what they had left out in
        sum."""
        self._reducer.restore_left_out(checkpoint.opened, section)

    def _owner_of(self, parameter: nn.Parameter) -> int:
        for optimizer in self.sharded_optimizers:
            if parameter in optimizer.param_to_rank:
                return optimizer.param_to_rank[parameter]
        raise RuntimeError(
            f"ShardedDataParallel: expected each trained parameter in an optimizer, got one of shape {tuple(parameter.shape)} in none"
        )

    def refresh_trainable(self) -> None:
        """After requires_grad of a parameter has changed, on all ranks alike."""
        named = dict(self.module.named_parameters())
        owners = [self._owner_of(parameter) if parameter.requires_grad else 0 for parameter in named.values()]
        self._reducer.train(list(named), list(named.values()), owners)
        self._trained = dict.fromkeys(self._trainable())
        for hook in self._hooks:
            hook.remove()
        # The wrapper may be gone before the parameter, whose hooks then do nothing.
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_ready, weakref.ref(self), index))
            for index, parameter in enumerate(named.values())
            if parameter.requires_grad
        ]

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _notice_trainable(self) -> None:
        # Parameters have no order and no truth: lists of them are not compared.
        if dict.fromkeys(self._trainable()).keys() == self._trained.keys():
            return
        if self.auto_refresh_trainable:
            if self.warn_on_trainable_params_changed:
                logging.warning("ShardedDataParallel: the parameters that require gradients have changed")
            self.refresh_trainable()
        else:
            self._reducer.expect_trained()


def _ready(wrapper: weakref.ref[ShardedDataParallel], index: int, _: torch.Tensor) -> None:
    alive = wrapper()
    if alive is not None:
        alive._reducer.ready(index)
