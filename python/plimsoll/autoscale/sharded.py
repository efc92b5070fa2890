"""autoscale() of a module inside which FullyShardedDataParallel has the parameters: FP32 shards, as optimizers see them, and
whole parameters that become scaled tensors when a module is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plimsoll.autoscale.policy import Policy
from plimsoll.autoscale.tensors import enter, value

if TYPE_CHECKING:
    from plimsoll.shard import FullyShardedDataParallel


def units_of(module: torch.nn.Module) -> list[FullyShardedDataParallel]:
    """Outermost first."""
    from plimsoll.shard import FullyShardedDataParallel  # where it is needed: it takes torch.distributed along

    return [part for part in module.modules() if isinstance(part, FullyShardedDataParallel)]


def shards_of(module: torch.nn.Module) -> set[torch.Tensor]:
    """The module's parameters that are a rank's part of a FullyShardedDataParallel's."""
    return {parameter for parameter in module.parameters() if getattr(parameter, "_is_sharded", False)}


class _WhileCalled:
    """Shows a module's whole parameters as scaled tensors during its forward pass."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.names: list[str] = []

    def before(self, module: torch.nn.Module, _: object) -> None:
        for name in self.names:
            whole: Any = module.__dict__.get(name, module._parameters.get(name))
            module.__dict__[name] = enter(whole, self._session)
            self._shadowed(module)[name] = whole

    def after(self, module: torch.nn.Module, *_: object) -> None:
        for name, whole in self._shadowed(module).items():
            if name in module._parameters:
                del module.__dict__[name]
            else:
                module.__dict__[name] = whole
        self._shadowed(module).clear()

    @staticmethod
    def _shadowed(module: torch.nn.Module) -> dict[str, torch.Tensor]:
        shadowed: dict[str, torch.Tensor] = module.__dict__.setdefault("_autoscale_shadowed", {})
        return shadowed


def enter_when_called(module: torch.nn.Module, session: Any, policy: Policy) -> None:
    """Does nothing without a FullyShardedDataParallel inside."""
    units = units_of(module)
    if units and policy.alters_model:
        raise ValueError(f"autoscale: expected a policy that leaves a sharded model as it is, got {policy.name}")
    shown: dict[torch.nn.Module, _WhileCalled] = {}
    for unit in units:
        for slot in unit._sharded.slots + unit._sharded.borrowed:
            if not slot.parameter.is_floating_point():
                continue
            if slot.module not in shown:
                shown[slot.module] = each = _WhileCalled(session)
                slot.module.register_forward_pre_hook(each.before)
                slot.module.register_forward_hook(each.after, always_call=True)
            shown[slot.module].names.append(slot.name)
        for parameter in {id(slot.parameter): slot.parameter for slot in unit._sharded.slots}.values():
            if parameter.requires_grad:
                parameter.register_hook(value)  # of a module that reads another one's
