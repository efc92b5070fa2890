"""State dicts of FullyShardedDataParallel and of its optimizers: whole ones, under the names of the module inside, and those of
a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from plimsoll.shard import consolidation, fully_sharded_checkpoint, fully_sharded_optimizer
from plimsoll.shard.flatten_params import FLAT
from plimsoll.shard.sharded_checkpoint import Checkpoint, Piece
from plimsoll.shard.sharded_parameters import WRAPPED, HeldRange, ShardedParameters, clean


class StateDicts(nn.Module):
    # Attributes that FullyShardedDataParallel sets.
    rank: int
    world_size: int
    flatten_parameters: bool
    no_broadcast_optim_state: bool | None
    state_dict_on_rank_0_only: bool
    _groups: list[list[str]]
    _sharded: ShardedParameters
    _summoned: bool
    _local_state: bool

    if TYPE_CHECKING:  # and what it defines

        def _instances(self) -> Sequence[StateDicts]: ...
        def _summon(self, volatile: bool) -> AbstractContextManager[None]: ...
        def summon_full_params(self, recurse: bool = True, volatile: bool = False) -> AbstractContextManager[None]: ...
        def held_ranges(self) -> list[HeldRange]: ...

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Whole and in full precision, as the module inside would have it. Collective."""
        is_outermost = not args and kwargs.get("destination") is None
        if self._local_state:
            return super().state_dict(*args, **kwargs)
        with self._summon(volatile=True):
            result = super().state_dict(*args, **kwargs)
        return {} if is_outermost and self.state_dict_on_rank_0_only and self.rank > 0 else result

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads a state_dict() of this instance or of the module inside. On all ranks."""
        if self._local_state:
            return super().load_state_dict(state_dict, strict)
        with self.summon_full_params():
            return super().load_state_dict(state_dict, strict)

    def local_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The shards of this rank. A subclass may call this from its own state_dict()."""
        with self._local():
            return StateDicts.state_dict(self, *args, **kwargs)

    def load_local_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        with self._local():
            return StateDicts.load_state_dict(self, state_dict, strict)

    def sharded_state_dict(self) -> dict[str, torch.Tensor | Piece]:
        """State that this rank holds, for :meth:`CheckpointSaver.save`: pieces of the parameters in full precision, which go on
        changing, and buffers. A weight that several modules share has its first name alone."""
        return fully_sharded_checkpoint.model_tensors(self)

    def load_sharded_state_dict(self, checkpoint: Checkpoint, section: str = "model") -> None:
        """Reads this rank's part of what any number of ranks saved, or one process of the module inside. Raises KeyError and
        ValueError, which name what is missing or of another shape, before anything is changed."""
        fully_sharded_checkpoint.load_model(self, checkpoint, section)

    def sharded_optim_state_dict(self, optim: torch.optim.Optimizer) -> dict[str, torch.Tensor | Piece]:
        """The same of an optimizer of this module's parameters: "PARAMETER.exp_avg", ..., and its groups' options."""
        return fully_sharded_checkpoint.optimizer_tensors(self, optim)

    def load_sharded_optim_state_dict(
        self, optim: torch.optim.Optimizer, checkpoint: Checkpoint, section: str = "optimizer"
    ) -> None:
        fully_sharded_checkpoint.load_optimizer(self, optim, checkpoint, section)

    def local_metadata_dict(self) -> dict[str, Any]:
        """Metadata that consolidate_shard_weights needs of this rank beside its local_state_dict."""
        metadata = []
        full_names: dict[int, str] = {}  # of parameters
        instances = [(path, module) for path, module in self.named_modules() if isinstance(module, StateDicts)]
        for path, instance in instances:
            for slot in instance._sharded.slots:
                full_names.setdefault(id(slot.parameter), clean(f"{path}.{slot.path}" if path else slot.path))
        for path, instance in instances:
            shards: dict[str, dict[str, Any]] = {}
            ranges = {held.name: held for held in instance.held_ranges()}
            for group, names in enumerate(instance._groups):
                flat = [f"flat_param_{group}"] * len(names) if instance.flatten_parameters else names
                for name, shard in zip(names, flat, strict=False):
                    entry = shards.setdefault(shard, {"names": [], "shapes": [], "numels": [], "padding": 0})
                    shape = torch.Size(ranges[name].shape)
                    entry["names"].append(name)
                    entry["shapes"].append(shape)
                    entry["numels"].append(shape.numel())
            shared = instance._sharded.shared()
            lent = [(slot.path, full_names[id(slot.parameter)]) for slot in instance._sharded.borrowed]
            metadata.append(
                {
                    "fsdp_path": clean(path),
                    "params": shards,
                    "no_broadcast_optim_state": instance.no_broadcast_optim_state,
                    "shared_param_info": shared,
                    "lent_param_info": lent,
                }
            )
        return {"param_metadata": metadata, "buffer_names": [name for name, _ in self.named_buffers()]}

    @staticmethod
    def consolidate_shard_weights(
        shard_weights: list[dict[str, torch.Tensor]],
        shard_metadata: list[dict[str, Any]],
        with_module_buffers: bool = True,
        strict: bool = True,
    ) -> dict[str, torch.Tensor]:
        """The whole state dict, from local_state_dict and local_metadata_dict of all ranks in order, also fairscale's. No
        processes needed."""
        return consolidation.consolidate(shard_weights, shard_metadata, with_module_buffers, strict)

    @contextmanager
    def _local(self) -> Iterator[None]:
        with ExitStack() as stack:
            for instance in self._instances():
                stack.enter_context(instance._shows_shards())
            yield

    @contextmanager
    def _shows_shards(self) -> Iterator[None]:
        if self._summoned:
            raise ValueError("local state dicts: expected to be outside summon_full_params")
        before, self._local_state = self._local_state, True
        try:
            yield
        finally:
            self._local_state = before

    def gather_full_optim_state_dict(
        self, optim: torch.optim.Optimizer, recipient_rank: int | None = 0, **_: Any
    ) -> dict[str, Any] | None:
        """The state of an optimizer of this module's parameters, or of some, as torch's optimizer of those of the module
        inside would have it; the entries that fairscale adds, and `param_names`, which says whose each number is. On
        recipient_rank, or everywhere (None). Collective."""
        return fully_sharded_optimizer.gather(self, optim, recipient_rank)

    def get_shard_from_optim_state_dict(self, full_optim_state_dict: dict[str, Any]) -> dict[str, Any]:
        """Part that this rank's optimizer loads of that state, or of torch's optimizer of the module inside: one of the same
        parameters, in their order. A state of several groups needs names (an optimizer of named_parameters()); without
        them it is of all parameters, or of all trained ones. Raises ValueError where numbers, names or shapes are others."""
        return fully_sharded_optimizer.shard(self, full_optim_state_dict)

    def _register_state_hooks(self) -> None:
        self.register_state_dict_post_hook(_leave_wrapper_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_put_wrapper_in)  # type: ignore[no-untyped-call]


def _leave_wrapper_out(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    own = {prefix + slot.path for slot in module._sharded.slots + module._sharded.borrowed} if not module._local_state else set()
    for key in [key for key in state if key.startswith(prefix)]:
        value = state.pop(key)
        name = prefix + key[len(prefix) :].removeprefix(WRAPPED + ".")
        if module.flatten_parameters:
            name = prefix + name[len(prefix) :].removeprefix(FLAT + ".")
        # The memory of what was summoned holds all parameters.
        state[name] = value.clone() if name in own else value
    if module.mixed_precision:
        for name, _ in module.named_buffers():
            if prefix + name in state and state[prefix + name].dtype == module.buffer_dtype:
                state[prefix + name] = state[prefix + name].float()


def _put_wrapper_in(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        name = key[len(prefix) :]
        inside = FLAT + "." if module.flatten_parameters and name not in module._flat_parameters() else ""
        state[f"{prefix}{WRAPPED}.{inside}{name}"] = state.pop(key)
