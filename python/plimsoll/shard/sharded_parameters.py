"""The parameters of a module that a unit holds the shards of: hidden from the module while they are sharded."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from plimsoll.pytorch.scaled_module import ScaledModule
from plimsoll.shard.flatten_params import FLAT

WRAPPED = "_fsdp_wrapped_module"  # fairscale's name of the module inside, which state dicts leave out


def clean(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in (WRAPPED, FLAT))


class Slot(NamedTuple):
    """Place of a parameter in a module; one that is shared has several."""

    module: nn.Module
    name: str
    path: str
    parameter: nn.Parameter


class _RequiresGrad:
    """requires_grad_() of a module whose parameters are hidden: nn.Module's finds none of them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, requires_grad: bool = True) -> nn.Module:
        for each in self.module.modules():
            for value in each.__dict__.values():
                if isinstance(value, nn.Parameter):
                    value.requires_grad_(requires_grad)
        return nn.Module.requires_grad_(self.module, requires_grad)


_lenders: Any = WeakIdKeyDictionary()  # of parameters that a unit holds: weak references to its instance


class ShardedParameters:
    """Finds the parameters below a module that no unit holds yet, and those that another instance's does, which this one
    borrows. Raises ValueError where that instance is gone."""

    def __init__(self, module: nn.Module) -> None:
        self.slots: list[Slot] = []
        self.borrowed: list[Slot] = []
        self.in_order: list[Slot] = []  # both, as the module has them
        wrapped = {id(part) for each in module.modules() if WRAPPED in each._modules for part in each.modules()}
        self.modules = [each for each in module.modules() if id(each) not in wrapped]  # those of this instance alone
        for prefix, owner in module.named_modules(remove_duplicate=True):
            for name, parameter in owner._parameters.items():
                if parameter is not None and not getattr(parameter, "_is_sharded", False):
                    path = clean(f"{prefix}.{name}" if prefix else name)
                    if parameter not in _lenders:
                        self.slots.append(Slot(owner, name, path, parameter))
                    elif _lenders[parameter]() is not None:
                        self.borrowed.append(Slot(owner, name, path, parameter))
                    else:
                        raise ValueError(
                            f"FullyShardedDataParallel: expected {path} to be whole, or shared with an instance that is there; "
                            "got a parameter that an instance held which is gone"
                        )
                    self.in_order.append(Slot(owner, name, path, parameter))

    def lenders(self) -> list[Any]:
        """The instances that hold what is borrowed."""
        found = [_lenders[slot.parameter]() for slot in self.borrowed]
        return list({id(instance): instance for instance in found if instance is not None}.values())

    def lend(self, instance: nn.Module) -> None:
        """From now on the parameters are that instance's."""
        for slot in self.slots:
            _lenders[slot.parameter] = weakref.ref(instance)

    def unique(self) -> dict[str, nn.Parameter]:
        """By the first of their paths."""
        seen: set[int] = set()
        found = {}
        for slot in self.slots:
            if id(slot.parameter) not in seen:
                seen.add(id(slot.parameter))
                found[slot.path] = slot.parameter
        return found

    def layer_states(self) -> dict[str, list[torch.Tensor]]:
        """State of the layer, for each parameter that is the weight of one FP8 layer."""
        shared = {path for pair in self.shared() for path in pair}
        return {
            slot.path: state
            for slot in self.slots
            if slot.path not in shared and isinstance(slot.module, ScaledModule)
            for name, state in slot.module.product_states().items()
            if name == slot.name
        }

    def shared(self) -> list[tuple[str, str]]:
        """Further paths of parameters, each with the first of the same."""
        first: dict[int, str] = {}
        return [
            (slot.path, first[id(slot.parameter)])
            for slot in self.slots
            if first.setdefault(id(slot.parameter), slot.path) != slot.path
        ]

    def hide(self, leaves: dict[str, nn.Parameter]) -> None:
        """Modules keep the parameters as attributes, which forward passes read. leaves: shown in their place, by path."""
        for module in self.modules:
            module.__dict__["requires_grad_"] = _RequiresGrad(module)
        for slot in self.slots + self.borrowed:
            slot.module._parameters.pop(slot.name, None)
            slot.module.__dict__[slot.name] = slot.parameter
        for slot in self.slots:
            if slot.path in leaves:
                slot.module._parameters[slot.name] = leaves[slot.path]

    def show(self) -> None:
        for module in self.modules:
            module.__dict__.pop("requires_grad_", None)
        for slot in self.slots + self.borrowed:
            slot.module.__dict__.pop(slot.name, None)
            slot.module._parameters.pop(slot.name, None)
            slot.module._parameters[slot.name] = slot.parameter

    def take_replaced(self) -> None:
        """Values that somebody put into other tensors while the parameters were shown."""
        for slot in self.slots + self.borrowed:
            shown = slot.module._parameters[slot.name]
            if shown is not None and shown is not slot.parameter:
                slot.parameter.data.copy_(shown.data)
                slot.parameter.requires_grad_(shown.requires_grad)


class HeldRange(NamedTuple):
    """Range of a parameter that this rank holds: elements [begin, end) of it, flattened."""

    name: str
    shape: list[int]
    begin: int
    end: int
    values: torch.Tensor


class Part(NamedTuple):
    """Elements [begin, end) of a parameter that this rank holds, under its path in the whole model."""

    name: str
    shape: tuple[int, ...]
    begin: int
    end: int
    parameter: nn.Parameter  # the module's own
    leaf: nn.Parameter  # the shard that they are in
    at: int  # where in it

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        """Flat. leaf: the shard, or a state of the same shape."""
        return leaf.view(-1)[self.at : self.at + self.end - self.begin]


def held_parts(root: Any) -> Iterator[Part]:
    """Parts of all parameters below a FullyShardedDataParallel, instance by instance."""
    for path, instance in root.named_modules():
        if not isinstance(instance, type(root)):
            continue
        parameters = {slot.path: slot.parameter for slot in reversed(instance._sharded.slots)}
        ranges = {held.name: held for held in instance.held_ranges()}
        for group, names in enumerate(instance._groups):
            at = 0
            for name in names:
                held = ranges[name]
                leaf = instance._shown[f"flat_param_{group}" if instance.flatten_parameters else name]
                full_name = clean(f"{path}.{name}" if path else name)
                start = at if instance.flatten_parameters else 0
                yield Part(full_name, tuple(held.shape), held.begin, held.end, parameters[name], leaf, start)
                at += held.end - held.begin


def expect_state_by_element(name: str, state: Mapping[str, Any]) -> None:
    """Raises ValueError for moments of 8 bits: 32 elements of a flat parameter share a scale, whichever parameters they are of."""
    for key in state:
        if key.endswith("_scale"):
            raise ValueError(
                f"FullyShardedDataParallel: expected an optimizer's state with values of single elements, got {key} of {name};"
                " moments of 8 bits are not saved from here, those of optimizer_state 'fp32' and 'bf16' are"
            )
