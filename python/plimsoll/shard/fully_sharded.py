"""FullyShardedDataParallel with fairscale's interface. The work is done in C++ (plimsoll/shard/engine/shard_schedule.h); here are
hooks around forward passes, and what state dicts and optimizers see."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn

from plimsoll.pytorch.scaled_module import ScaledModule
from plimsoll.shard.fairscale_names import FullyShardedNames
from plimsoll.shard.flatten_params import FlatModule
from plimsoll.shard.fully_sharded_state import StateDicts
from plimsoll.shard.parameter_device import parameter_device
from plimsoll.shard.ranks import ProcessGroupName, own_group, ranks_of
from plimsoll.shard.sharded_parameters import WRAPPED, HeldRange, ShardedParameters, clean
from plimsoll.shard.tensors import halved, map_tensors, to_dtype


class FullyShardedDataParallel(FullyShardedNames, StateDicts, nn.Module):
    """A module whose parameters are whole while it computes, and sharded over the ranks of a process group otherwise.

    Its parameters are then one flat shard for each dtype (`flat_param_0`), or with flatten_parameters=False one for each
    parameter. Make the optimizer after it. Shards may be frozen and trained again, parameters only where each has a shard;
    the next forward pass goes by their requires_grad. Instances may be nested; the outermost one is called and asked for
    gradients.

    Arguments are fairscale's. What differs: gradients travel in fp32 unless `reduce_dtype` says otherwise; shards hold no
    padding; shards, gradients and state dicts are where the parameters were when they were wrapped, on the CPU or on one CUDA
    device, which compute_device and state_dict_device may name; and there is no bucket of small gradients, since a unit's
    gradients travel together.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        process_group_reduce_scatter: Any = ProcessGroupName.reduce_scatter,
        reshard_after_forward: bool = True,
        disable_reshard_on_root: bool = True,
        mixed_precision: bool = False,
        fp32_reduce_scatter: bool = False,
        flatten_parameters: bool = True,
        move_params_to_cpu: bool = False,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        move_grads_to_cpu: bool | None = None,
        bucket_cap_mb: int = 25,
        compute_device: torch.device | None = None,
        no_broadcast_optim_state: bool | None = False,
        state_dict_device: torch.device | None = None,
        clear_autocast_cache: bool = False,
        force_input_to_fp32: bool = False,
        verbose: bool = False,
        cpu_offload: bool = False,
        state_dict_on_rank_0_only: bool = False,
        gradient_predivide_factor: float | None = None,
        allow_reset_parameters: bool = False,
        *,
        reduce_dtype: torch.dtype = torch.float32,
        prefetch: bool = True,
        gather_codes: bool = True,
        ordered_passes: int = 0,
        offload_path: str | None = None,
    ) -> None:
        """Ours: prefetch: the next unit's parameters travel while this one computes. gather_codes: where the recipe of the
        scope gives a weight of plimsoll.pytorch one scale, its FP8 codes travel, one byte an element, and whoever reads
        its values meanwhile finds NaN; on CUDA values travel. ordered_passes: backward passes in a step, whose gradients are
        averaged, over passes and ranks, in an order that does not depend on the number of ranks: `ranks * ordered_passes`
        decides the bits. Losses are not to be divided by the number of passes then.
        offload_path: a folder; shards and their gradients wait in files there, without names, that are mapped into memory
        (for the optimizer's states: offload_optimizer)."""
        arguments = {k: v for k, v in locals().items() if k not in ("self", "module", "__class__")}
        super().__init__()
        if fp32_reduce_scatter and not mixed_precision:
            raise ValueError("fp32_reduce_scatter requires mixed_precision=True")
        self._arguments = arguments
        self.reshard_after_forward = reshard_after_forward
        self.mixed_precision = mixed_precision
        self.flatten_parameters = flatten_parameters
        self.move_params_to_cpu = move_params_to_cpu or cpu_offload
        self.move_grads_to_cpu = self.move_params_to_cpu if move_grads_to_cpu is None else move_grads_to_cpu
        self.compute_dtype = compute_dtype or (torch.float16 if mixed_precision else torch.float32)
        self.buffer_dtype = buffer_dtype or self.compute_dtype
        self.clear_autocast_cache = clear_autocast_cache
        self.force_input_to_fp32 = force_input_to_fp32
        self.state_dict_on_rank_0_only = state_dict_on_rank_0_only
        self.no_broadcast_optim_state = no_broadcast_optim_state
        self.allow_reset_parameters = allow_reset_parameters
        self._ranks = ranks_of(process_group)
        self.process_group, self.rank, self.world_size = self._ranks.group, self._ranks.rank, self._ranks.size
        self._sharded = ShardedParameters(module)
        self._check_dtypes()
        parameters = [*self._sharded.unique().values(), *module.parameters()]
        self._device = parameter_device(parameters, arguments, self._ranks)
        self._set_divide_factors(gradient_predivide_factor)
        reduce_ranks = own_group(self._ranks, process_group_reduce_scatter, self._device)
        self.process_group_reduce_scatter = reduce_ranks.group
        unique = self._sharded.unique()
        states = self._sharded.layer_states() if gather_codes and self._device.type == "cpu" else {}
        self._coded = {id(unique[path]) for path in states}
        self._check_borrowed()
        self._unit = torch.ops.plimsoll.sharded_unit(
            list(unique),
            list(unique.values()),
            [states.get(path, []) for path in unique],
            gather=self._ranks.handle,
            reduce=reduce_ranks.handle,
            compute_dtype=compute_dtype or (torch.float16 if mixed_precision else None),
            reduce_dtype=reduce_dtype,
            reshard_after_forward=reshard_after_forward,
            disable_reshard_on_root=disable_reshard_on_root,
            flatten_parameters=flatten_parameters,
            prefetch=prefetch,
            gradient_predivide_factor=gradient_predivide_factor,
            ordered_passes=ordered_passes,
            offload_path=offload_path,
        )
        self._fsdp_wrapped_module = FlatModule(module) if flatten_parameters else module
        self._groups: list[list[str]] = self._unit.groups()
        self._shown: dict[str, nn.Parameter] = {}  # the shards, under the names that stand for them here
        self._make_shards()
        self._sharded.lend(self)
        self._sharded.hide(self._shown)
        self._forget_schedule()
        self._summoned = False
        self._local_state = False
        self._register_state_hooks()

    def _check_dtypes(self) -> None:
        narrow = self.compute_dtype is torch.float16 and not self.mixed_precision
        for path, parameter in self._sharded.unique().items():
            if not parameter.is_floating_point() or (parameter.dtype is torch.float16) != narrow:
                expected = "FP16" if narrow else "FP32"
                raise ValueError(f"FullyShardedDataParallel: expected {expected} parameters, got {path} of {parameter.dtype}")

    def _check_borrowed(self) -> None:
        for slot in self._sharded.borrowed:
            if any(id(slot.parameter) in lender._coded for lender in self._sharded.lenders()):
                raise ValueError(
                    f"FullyShardedDataParallel: expected gather_codes=False in the instance that holds {slot.path}, because "
                    "another one reads its values"
                )

    def append_shared_param(self, p: nn.Parameter) -> None:
        """fairscale's: `p` is of another instance inside the same outermost one, and was shared before this one was made,
        which has noticed."""
        if self._schedule is not None:
            raise RuntimeError("append_shared_param: expected to be called before the first forward pass")
        if all(slot.parameter is not p for slot in self._sharded.borrowed):
            raise ValueError(
                "append_shared_param: expected a parameter that this module shared with another instance's when it was wrapped"
            )

    def _make_shards(self) -> None:
        shapes = {held.name: held.shape for held in self.held_ranges()}
        for group, names in enumerate(self._groups):
            for index, leaf in enumerate(self._unit.leaves(group)):
                values = leaf.detach()
                if self.world_size == 1 and not self.flatten_parameters:
                    values = values.view(shapes[names[index]])
                shard = nn.Parameter(values, requires_grad=leaf.requires_grad)
                shard._is_sharded = True  # type: ignore[attr-defined]
                self._unit.set_leaf(group, index, shard)
                if self.flatten_parameters:
                    self._fsdp_wrapped_module.register_parameter(f"flat_param_{group}", shard)
                    self._shown[f"flat_param_{group}"] = shard
                else:
                    self._shown[names[index]] = shard

    # The schedule of the outermost instance, made when that is first called.

    def _forget_schedule(self) -> None:
        self._schedule: Any = None
        self._index = 0
        self._sharing: list[weakref.ref[FullyShardedDataParallel]] = []  # the schedule
        self._is_root: bool | None = None

    def _lazy_init(self) -> None:
        if self._schedule is not None:
            return
        instances = self._instances()
        for instance in instances:  # before the new one takes over their hooks
            instance._forget_schedule()
        index_of = {id(instance): index for index, instance in enumerate(instances)}
        lenders = [instance._sharded.lenders() for instance in instances]
        if any(id(lender) not in index_of for each in lenders for lender in each):
            raise RuntimeError(
                "FullyShardedDataParallel: expected instances that share a parameter inside the one that is called"
            )
        borrowed = [[index_of[id(lender)] for lender in each] for each in lenders]
        schedule = torch.classes.plimsoll.ShardSchedule([instance._unit for instance in instances], borrowed)
        for index, instance in enumerate(instances):
            instance._schedule, instance._index, instance._is_root = schedule, index, index == 0
            instance._sharing = [weakref.ref(other) for other in instances]
            if instance.mixed_precision:
                instance._cast_buffers(instance.buffer_dtype)

    def _instances(self) -> list[FullyShardedDataParallel]:
        """All instances, this one and those inside, the outermost first."""
        return [module for module in self.modules() if isinstance(module, FullyShardedDataParallel)]

    def _cast_buffers(self, dtype: torch.dtype) -> None:
        inner = {id(part) for other in self._instances()[1:] for part in other.modules()}
        for module in self.modules():
            if id(module) in inner or isinstance(module, ScaledModule):  # scales stay in fp32
                continue
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.to(dtype)

    # Calls.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._lazy_init()
        if self._is_root and self.mixed_precision:
            args, kwargs = map_tensors(
                (args, kwargs), halved if self.compute_dtype is torch.float32 else to_dtype(self.compute_dtype)
            )
        elif self.force_input_to_fp32 and not self.mixed_precision:
            args, kwargs = map_tensors((args, kwargs), to_dtype(torch.float32))
        if self._summoned:
            return self._fsdp_wrapped_module(*args, **kwargs)
        self._schedule.before_forward(self._index)
        self._register_post_backward_hooks()
        outputs = self._register_pre_backward_hooks(self._fsdp_wrapped_module(*args, **kwargs))
        if self.clear_autocast_cache:
            torch.clear_autocast_cache()
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients stay on their rank; those of the first backward pass after it travel with them."""
        self._lazy_init()
        if not self._is_root:
            raise RuntimeError("no_sync: expected the outermost FullyShardedDataParallel")
        before = self._schedule.set_sync(False)
        try:
            yield
        finally:
            self._schedule.set_sync(before)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """The norm of all gradients of all ranks before they are clipped to it."""
        self._lazy_init()
        if not self._is_root:
            raise RuntimeError("clip_grad_norm_: expected the outermost FullyShardedDataParallel")
        return torch.tensor(
            self._schedule.clip_grad_norm_(max_norm=float(max_norm), norm_type=float(norm_type)), dtype=torch.float32
        )

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Each rank's gradients are divided by `pre` before they are summed, the sum by `post`; `recursive`: those of the
        instances inside, too. Their product is the number of ranks for an average."""
        for instance in self._instances() if recursive else [self]:
            instance._unit.set_averaging(predivide=float(pre), postdivide=float(post))
            instance._set_divide_factors(float(pre), float(post))

    @contextmanager
    def summon_full_params(self, recurse: bool = True, volatile: bool = False) -> Iterator[None]:
        """Inside, the parameters are whole, in full precision and under their own names, on all ranks. What they are
        changed to is kept, unless volatile."""
        with ExitStack() as stack:
            for instance in self._instances() if recurse else [self]:
                stack.enter_context(instance._summon(volatile))
            yield

    @contextmanager
    def _summon(self, volatile: bool) -> Iterator[None]:
        if self._summoned:
            yield
            return
        if self._schedule is not None and self._schedule.in_backward():
            raise RuntimeError("summon_full_params: expected no backward pass under way")
        with ExitStack() as stack:
            for lender in self._sharded.lenders():
                stack.enter_context(lender._summon(volatile))
            stack.enter_context(self._summon_own(volatile))
            yield

    @contextmanager
    def _summon_own(self, volatile: bool) -> Iterator[None]:
        self._unit.take_requires_grad()
        masters = [self._unit.gather_masters(group) for group in range(len(self._groups))]
        for group, values in enumerate(masters):
            self._unit.show_masters(group, values)
        flat = self._flat_parameters().copy()
        self._flat_parameters().clear()
        self._sharded.show()
        self._summoned = True
        try:
            yield
        finally:
            if not volatile:
                with torch.no_grad():
                    self._sharded.take_replaced()
                for group, values in enumerate(masters):
                    self._unit.write_masters(group, values)
            for group in range(len(masters)):
                self._unit.show_masters(group, None)
            self._unit.take_requires_grad()
            self._sharded.hide(self._shown)
            self._flat_parameters().update(flat)
            self._summoned = False

    def held_ranges(self) -> list[HeldRange]:
        """Ranges of this instance's own parameters that this rank holds."""
        return [HeldRange(*piece) for group in range(len(self._groups)) for piece in self._unit.pieces(group)]

    @property
    def module(self) -> nn.Module:
        wrapped = cast(nn.Module, self._modules[WRAPPED])
        return wrapped.module if isinstance(wrapped, FlatModule) and self.flatten_parameters else wrapped

    def _flat_parameters(self) -> dict[str, nn.Parameter | None]:
        return self._fsdp_wrapped_module._parameters if self.flatten_parameters else {}

    @property
    def params(self) -> list[nn.Parameter]:
        return list(self._shown.values())

    @property
    def cpu_offload(self) -> bool:
        return self.move_params_to_cpu

    def params_with_grad(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.grad is not None]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Flat ones under their whole paths; inside summon_full_params, the module's under its names."""
        shows_flat = self.flatten_parameters and not self._summoned
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name if shows_flat else clean(name), parameter

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, buffer in super().named_buffers(*args, **kwargs):
            yield clean(name), buffer

    def apply(self, fn: Callable[[nn.Module], None]) -> FullyShardedDataParallel:
        with self.summon_full_params(recurse=False):
            return super().apply(fn)

    def reset_parameters(self) -> None:
        if not self.allow_reset_parameters:
            raise RuntimeError("reset parameters after FSDP wrapping is not allowed")
        with self.summon_full_params():
            cast(Any, self.module).reset_parameters()

    def _apply(self, fn: Callable[..., torch.Tensor], recurse: bool = True) -> FullyShardedDataParallel:
        for parameter in self._shown.values():
            probe = parameter.new_empty(0)
            moved = fn(probe)
            if moved.dtype != probe.dtype or moved.device != probe.device:
                raise RuntimeError("FullyShardedDataParallel: expected dtype and device to be chosen before wrapping")
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if WRAPPED not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self._modules[WRAPPED], name)

    def __getitem__(self, key: int) -> Any:
        return cast(Any, self.module).__getitem__(key)

    def extra_repr(self) -> str:
        return (
            f"world_size={self.world_size}, flatten_parameters={self.flatten_parameters}, mixed_precision={self.mixed_precision}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Collective: the whole module, and how it was wrapped. The process group is that of whoever loads it: all ranks."""
        if self._sharded.borrowed:
            raise pickle.PicklingError(
                "FullyShardedDataParallel: expected no parameter of another instance, which is pickled apart"
            )
        with self.summon_full_params(recurse=False, volatile=True):
            module = pickle.dumps(self.module)
        arguments = {k: v for k, v in self._arguments.items() if not k.startswith("process_group")}
        return {"module": module, "arguments": arguments, "training": self.training}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FullyShardedDataParallel.__init__(self, pickle.loads(state["module"]), **state["arguments"])
        self.train(state["training"])

    def __deepcopy__(self, memo: dict[int, Any]) -> FullyShardedDataParallel:
        """Over the same process group. Collective."""
        with self.summon_full_params(recurse=False, volatile=True):
            module = copy.deepcopy(self.module, memo)
        memo[id(self)] = twin = type(self)(module, **self._arguments)
        return twin.train(self.training)
