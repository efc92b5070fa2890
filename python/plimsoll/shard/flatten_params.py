"""Parameters of a module that stand in flat ones instead; fairscale's names of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import nn

FLAT = "_fpw_module"  # the module inside, which state dicts leave out


class FlatModule(nn.Module):
    """Holds a module and flat parameters beside it. Attributes that it has not are the module's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fpw_module = module

    @property
    def module(self) -> nn.Module:
        return cast(nn.Module, self._modules[FLAT])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if FLAT not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.module, name)

    def __getitem__(self, key: int) -> Any:
        inside: Any = self.module
        return inside.__getitem__(key)


class _Slot(NamedTuple):
    """A place where a module has a parameter."""

    module: nn.Module
    name: str
    path: str


class _Member(NamedTuple):
    """A parameter in a flat one. It has several slots where modules share it."""

    shape: torch.Size
    slots: list[_Slot]


class FlattenParamsWrapper(FlatModule):
    """The module, whose parameters (`param_list`: those of it, or lists of them, each for a flat parameter of its own) become
    `flat_param_0`, ..., or `flat_param_NAME` for each of flat_param_names. The module reads views of them.

    The parameters of one flat one are of the same dtype and device, and trained or frozen together; otherwise ValueError.
    """

    def __init__(
        self,
        module: nn.Module,
        param_list: Sequence[Any] | None = None,
        flat_param_names: list[str] | None = None,
    ) -> None:
        super().__init__(module)
        lists = [list(module.parameters())] if param_list is None else list(param_list)
        if lists and isinstance(lists[0], nn.Parameter):
            lists = [lists]
        lists = [list(each) for each in lists if len(each) > 0]
        endings = [str(index) for index in range(len(lists))] if flat_param_names is None else flat_param_names
        if len(endings) != len(lists):
            raise ValueError(f"FlattenParamsWrapper: expected a name for each of {len(lists)} lists, got {len(endings)}")
        if len(set(endings)) != len(endings):
            raise ValueError(f"FlattenParamsWrapper: expected names that differ, got {endings}")
        self.flat_param_names = [f"flat_param_{ending}" for ending in endings]
        if sum(map(len, lists)) != len({id(parameter) for each in lists for parameter in each}):
            raise ValueError("FlattenParamsWrapper: expected each parameter in one list, got one twice")
        self._members = [_members(module, each) for each in lists]
        self.num_params_managed = sum(map(len, lists))
        self.is_flattened = True
        for name, members in zip(self.flat_param_names, self._members, strict=True):
            parameters = [member.slots[0].module._parameters[member.slots[0].name] for member in members]
            values = torch.cat([cast(torch.Tensor, parameter).detach().reshape(-1) for parameter in parameters])
            self.register_parameter(name, nn.Parameter(values, requires_grad=cast(torch.Tensor, parameters[0]).requires_grad))
        self._show_views()
        self.register_state_dict_post_hook(_leave_wrapper_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_flatten_loaded)  # type: ignore[no-untyped-call]

    @property
    def flat_params(self) -> list[nn.Parameter]:
        return [getattr(self, name) for name in self.flat_param_names]

    @property
    def flat_param(self) -> nn.Parameter:
        if len(self.flat_param_names) != 1:
            raise RuntimeError(f"flat_param: expected one flat parameter, got {len(self.flat_param_names)}; see flat_params")
        return self.flat_params[0]

    def metadata(self, param_idx: int) -> tuple[list[str], list[torch.Size], list[int]]:
        """Names, shapes and sizes of the parameters in a flat one."""
        members = self._members[param_idx]
        names = [f"{FLAT}.{member.slots[0].path}" for member in members]
        return names, [member.shape for member in members], [member.shape.numel() for member in members]

    def get_param_views(self, external_data_list: Sequence[torch.Tensor | None] | None = None) -> Iterator[torch.Tensor]:
        """The parameters in flat ones; external_data_list: tensors that are read in their place, or None for some."""
        given = external_data_list or [None] * len(self._members)
        if len(given) != len(self._members):
            raise ValueError(f"get_param_views: expected {len(self._members)} tensors, got {len(given)}")
        for own, data, members in zip(self.flat_params, given, self._members, strict=True):
            flat = own if data is None else data
            sizes = [member.shape.numel() for member in members]
            if flat.numel() != sum(sizes):
                raise ValueError(f"get_param_views: expected {sum(sizes)} elements, got {flat.numel()}")
            for part, member in zip(flat.view(-1).split(sizes), members, strict=True):
                yield part.view(member.shape)

    def _show_views(self) -> None:
        members = [member for each in self._members for member in each]
        for view, member in zip(self.get_param_views(), members, strict=True):
            for module, name, _ in member.slots:
                module._parameters.pop(name, None)
                module.__dict__[name] = view

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_flattened:
            self._show_views()
        return super().forward(*args, **kwargs)

    @contextmanager
    def unflatten_params(self, flat_params: Sequence[torch.Tensor] | None = None) -> Iterator[None]:
        """Inside, the module has its parameters, and this wrapper no flat ones. What they are changed to is kept; or written
        to flat_params, whose values they have."""
        if not self.is_flattened:
            yield
            return
        flat = {name: self._parameters.pop(name) for name in self.flat_param_names if name in self._parameters}
        self.__dict__.update(flat)  # where flat_params finds them
        members = [member for each in self._members for member in each]
        views = list(self.get_param_views([own.detach() for own in flat_params or self.flat_params]))
        trained = [own.requires_grad for own, each in zip(self.flat_params, self._members, strict=True) for _ in each]
        for view, member, is_trained in zip(views, members, trained, strict=True):
            parameter = nn.Parameter(view, requires_grad=is_trained)
            for module, name, _ in member.slots:
                module.__dict__.pop(name, None)
                module.register_parameter(name, parameter)
        self.is_flattened = False
        try:
            yield
        finally:
            for view, member in zip(views, members, strict=True):
                shown = member.slots[0].module._parameters[member.slots[0].name]
                if shown is not None and shown.data_ptr() != view.data_ptr():  # somebody put other values there
                    view.copy_(shown.detach())
            for name in flat:
                del self.__dict__[name]
            self._parameters.update(flat)
            self.is_flattened = True
            self._show_views()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the module would have it."""
        with self.unflatten_params():
            return super().state_dict(*args, **kwargs)

    def flat_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The flat parameters, and what is not in them under the module's names."""
        return super().state_dict(*args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> FlattenParamsWrapper:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._show_views()
        return self

    def _paths(self) -> list[list[str]]:
        return [[member.slots[0].path for member in members] for members in self._members]

    def _endings(self) -> list[str]:
        return [name.removeprefix("flat_param_") for name in self.flat_param_names]

    def __getstate__(self) -> dict[str, Any]:
        with self.unflatten_params():
            module = pickle.dumps(self.module)
        return {"module": module, "paths": self._paths(), "names": self._endings(), "training": self.training}

    def __setstate__(self, state: dict[str, Any]) -> None:
        module = pickle.loads(state["module"])
        lists = [[module.get_parameter(path) for path in paths] for paths in state["paths"]]
        FlattenParamsWrapper.__init__(self, module, lists, state["names"])
        self.train(state["training"])

    def __deepcopy__(self, memo: dict[int, Any]) -> FlattenParamsWrapper:
        with self.unflatten_params():
            module = copy.deepcopy(self.module, memo)
        lists = [[module.get_parameter(path) for path in paths] for paths in self._paths()]
        memo[id(self)] = twin = type(self)(module, lists, self._endings())
        return twin.train(self.training)


def _members(module: nn.Module, parameters: list[nn.Parameter]) -> list[_Member]:
    wanted = {id(parameter) for parameter in parameters}
    found: dict[int, _Member] = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is None or id(parameter) not in wanted:
                continue
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(owner, FlatModule) and name.startswith("flat_param_"):
                raise ValueError(f"FlattenParamsWrapper: expected no flat parameter inside, got {path}")
            found.setdefault(id(parameter), _Member(parameter.shape, [])).slots.append(_Slot(owner, name, path))
    if len(found) != len(wanted):
        raise ValueError(f"FlattenParamsWrapper: expected parameters of the module, got {len(wanted) - len(found)} others")
    kinds = {(parameter.dtype, parameter.device, parameter.requires_grad) for parameter in parameters}
    if len(kinds) > 1:
        raise ValueError(
            "FlattenParamsWrapper: expected one dtype, device and requires_grad in a flat parameter, got "
            + ", ".join(sorted(str(kind) for kind in kinds))
        )
    return list(found.values())


def _leave_wrapper_out(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[prefix + key[len(prefix) :].removeprefix(FLAT + ".")] = state.pop(key)


def _flatten_loaded(
    module: Any, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: list[str]
) -> None:
    """Puts what is loaded under the module's names into flat parameters. Flat ones are loaded as they are."""
    own = {prefix + name for name in module.flat_param_names} if module.is_flattened else set()
    for name, members, flat in zip(module.flat_param_names, module._members, module.flat_params, strict=True):
        if prefix + name in state or prefix + name not in own:
            continue
        values = flat.detach().clone()  # of what is missing, those that are there
        parts = values.split([member.shape.numel() for member in members])
        for part, member in zip(parts, members, strict=True):
            given = [state.pop(prefix + slot.path) for slot in member.slots if prefix + slot.path in state]
            if not given:
                missing.append(prefix + member.slots[0].path)
            elif given[0].shape != member.shape:
                errors.append(f"{prefix}{member.slots[0].path}: expected {list(member.shape)}, got {list(given[0].shape)}")
            else:
                part.copy_(given[0].reshape(-1))
        state[prefix + name] = values
    for key in [key for key in state if key.startswith(prefix) and key not in own]:
        state[prefix + FLAT + "." + key[len(prefix) :]] = state.pop(key)
