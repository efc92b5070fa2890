"""Gradients that go to the one rank that has their optimizer state (ZeRO-2), with fairscale's interface."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.gradient_reducer import GradientReducer
from plimsoll.shard.oss import OSS
from plimsoll.shard.ranks import ranks_of
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
        dtype = torch.float16 if reduce_fp16 else torch.float32
        self._reducer = GradientReducer(self.process_group, self.rank, self.world_size, reduce_buffer_size, dtype)
        if sync_models_at_startup:
            self._broadcast(list(module.state_dict().values()))
        self.refresh_trainable()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._notice_trainable()
        if self.enable_broadcast_buffers and self.training:
            self.sync_buffers(blocking=True)
        if torch.compiler.is_compiling():
            return self.module(*inputs, **kwargs)
        self._reducer.begin()  # a backward pass that runs this again: inside it there will be another one
        result = self.module(*inputs, **kwargs)
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._reducer.begin)
        return result

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients add up on each rank by itself; the first backward() after it averages what has added up."""
        before, self._reducer.synchronizes = self._reducer.synchronizes, False
        try:
            yield
        finally:
            self._reducer.synchronizes = before

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
        self._reducer.train(list(self.module.parameters()), self._owner_of)

    def _notice_trainable(self) -> None:
        # Parameters have no order and no truth: lists of them are not compared.
        now, known = dict.fromkeys(self._trainable()), dict.fromkeys(self._reducer.trained)
        if now.keys() == known.keys():
            return
        if self.auto_refresh_trainable:
            if self.warn_on_trainable_params_changed:
                logging.warning("ShardedDataParallel: the parameters that require gradients have changed")
            self.refresh_trainable()
        else:
            self._reducer.expect_trained()
