"""Names that fairscale's users call beside those of its documentation, for what the engines do."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.tensors import tensors_in


class TrainingState(Enum):
    IDLE = auto()
    FORWARD = auto()
    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()
    SUMMON_FULL_PARAMS = auto()


# The phases of a unit by the engine's numbers (UnitPhase).
_STATES = (TrainingState.IDLE, TrainingState.FORWARD, TrainingState.BACKWARD_PRE, TrainingState.BACKWARD_POST)


class FullyShardedNames:
    """Names of FullyShardedDataParallel."""

    # Attributes that FullyShardedDataParallel sets.
    world_size: int
    flatten_parameters: bool
    _arguments: dict[str, Any]
    _device: torch.device
    _groups: list[list[str]]
    _index: int
    _schedule: Any
    _sharing: list[weakref.ref[Any]]
    _shown: dict[str, nn.Parameter]
    _summoned: bool
    _unit: Any

    if TYPE_CHECKING:  # and what it defines

        def _forget_schedule(self) -> None: ...

    @property
    def training_state(self) -> TrainingState:
        """BACKWARD_PRE from when the backward pass needs this instance's parameters, BACKWARD_POST from its last gradient to
        the end of the model's backward pass."""
        if self._summoned:
            return TrainingState.SUMMON_FULL_PARAMS
        return TrainingState.IDLE if self._schedule is None else _STATES[self._schedule.phase(self._index)]

    def assert_state(self, state: TrainingState | list[TrainingState]) -> None:
        """Raises ValueError in another state than this, or than these."""
        states = [state] if isinstance(state, TrainingState) else list(state)
        if self.training_state not in states:
            raise ValueError(f"expected to be in states {states} but current state is {self.training_state}")

    def _reset_lazy_init(self) -> None:
        """The next forward pass finds anew which instances there are, and which is the outermost."""
        for other in [reference() for reference in self._sharing]:
            if other is not None:
                other._forget_schedule()

    def _register_post_backward_hooks(self) -> None:
        """Hooks that take the gradients of this instance's parameters, before each forward pass."""
        if torch.is_grad_enabled() and not self._schedule.in_backward():
            self._schedule.attach(self._index)

    def _register_pre_backward_hooks(self, outputs: Any) -> Any:
        """Hooks of the outputs that gather the parameters again, after each forward pass, whose parameters go then."""
        self._schedule.after_forward(self._index, tensors_in(outputs))
        return outputs

    def _free_full_params(self, params: Sequence[nn.Parameter] | None = None) -> None:
        """Lets go of the whole parameters until a pass needs them; of those in these shards alone. On all ranks."""
        if self._summoned:
            raise RuntimeError("_free_full_params: expected to be outside summon_full_params")
        wanted = {id(shard) for shard in (self._shown.values() if params is None else params)}
        for group, names in enumerate(self._groups):
            shown = [f"flat_param_{group}"] if self.flatten_parameters else names
            if any(id(self._shown[name]) in wanted for name in shown):
                self._unit.release(group)

    def non_shared_params(self) -> list[nn.Parameter]:
        return list(self._shown.values())

    def _set_divide_factors(self, pre: float | None, post: float | None = None) -> None:
        """As the engine takes them: a choice of its own, or all of the average, where they are not given."""
        if pre is None:
            pre, post = torch.ops.plimsoll.averaging(self.world_size)
        self.gradient_predivide_factor = float(pre)
        self.gradient_postdivide_factor = self.world_size / pre if post is None else float(post)

    # Arguments.

    @property
    def bucket_cap_mb(self) -> int:
        return int(self._arguments["bucket_cap_mb"])

    @property
    def compute_device(self) -> torch.device:
        return self._device

    @property
    def disable_reshard_on_root(self) -> bool:
        return bool(self._arguments["disable_reshard_on_root"])

    @property
    def fp32_reduce_scatter(self) -> bool:
        return bool(self._arguments["fp32_reduce_scatter"])

    @property
    def state_dict_device(self) -> torch.device:
        return self._device

    @property
    def verbose(self) -> bool:
        return bool(self._arguments["verbose"])


class Bucket(NamedTuple):
    """Trained parameters of one owner. `buffer` is a copy of their values, flat: parameters keep memory of their own."""

    params: list[torch.Tensor]

    @property
    def buffer(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.params])


class ShardedOptimizerNames:
    """Names of OSS."""

    group: Any
    rank: int
    world_size: int
    param_groups: list[dict[str, Any]]
    _owner: dict[torch.Tensor, int]

    @property
    def _default_device(self) -> torch.device:
        first: torch.Tensor = self.param_groups[0]["params"][0]
        return first.device

    @property
    def _per_device_params(self) -> dict[torch.device, list[list[torch.Tensor]]]:
        """The parameters of each rank by device, the smallest first."""
        found: dict[torch.device, list[list[torch.Tensor]]] = {}
        for parameter in sorted(self._owner, key=torch.Tensor.numel):
            of_ranks = found.setdefault(parameter.device, [[] for _ in range(self.world_size)])
            of_ranks[self._owner[parameter]].append(parameter)
        return found

    @property
    def buckets(self) -> dict[torch.device, dict[int, Bucket]]:
        """The trained parameters by device and rank; ranks without any are left out."""
        found: dict[torch.device, dict[int, Bucket]] = {}
        for device, of_ranks in self._per_device_params.items():
            trained = [[parameter for parameter in each if parameter.requires_grad] for each in of_ranks]
            found[device] = {rank: Bucket(each) for rank, each in enumerate(trained) if each}
        return found

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    @property
    def global_rank(self) -> int:
        return dist.get_global_rank(self.group, self.rank)
