"""Choice of the modules inside a model that become units of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import nn

from plimsoll.shard.fully_sharded import FullyShardedDataParallel

Policy = Callable[..., bool]


def default_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    module_is_root: bool,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
    skip_params_check_for_root: bool = False,
) -> bool:
    """recurse: whether to look inside `module`; else: whether to wrap it, with `unwrapped_params` left in it."""
    own: Any = default_auto_wrap_policy
    leaves = own.FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules
    excluded = own.EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules
    is_large = unwrapped_params >= min_num_params
    if recurse:
        return is_large and not isinstance(module, tuple(leaves))
    return (is_large or (module_is_root and skip_params_check_for_root)) and not isinstance(module, tuple(excluded))


default_auto_wrap_policy.EXCLUDE_WRAP_MODULES = {nn.ModuleList, nn.ModuleDict}  # type: ignore[attr-defined]
default_auto_wrap_policy.FORCE_LEAF_MODULES = {nn.MultiheadAttention}  # type: ignore[attr-defined]


def config_auto_wrap_policy(module: nn.Module, recurse: bool, unwrapped_params: int, module_is_root: bool) -> bool:
    """Wraps what has an attribute `wrapper_config`: the arguments of its wrapper."""
    return recurse or hasattr(module, "wrapper_config")


class _Scope:
    """Settings of enable_wrap."""

    current: ClassVar[_Scope | None] = None

    def __init__(self, policy: Policy | None, wrapper: Callable[..., nn.Module], arguments: dict[str, Any]) -> None:
        self.policy = policy or default_auto_wrap_policy
        self.wrapper = wrapper
        self.arguments = arguments

    def wrap(self, module: nn.Module, overrides: dict[str, Any]) -> nn.Module:
        own = getattr(module, "wrapper_config", {})
        return self.wrapper(module, **{**self.arguments, **own, **overrides})

    def wrap_inside(self, module: nn.Module, policy: Policy, overrides: dict[str, Any], is_root: bool) -> tuple[nn.Module, int]:
        """The module, or its wrapper, and how many of its parameters are wrapped."""
        count = sum(parameter.numel() for parameter in module.parameters())
        if not policy(module=module, recurse=True, unwrapped_params=count, module_is_root=is_root):
            return module, 0
        wrapped = 0
        for name, child in module.named_children():
            replacement, inside = self.wrap_inside(child, policy, overrides, False)
            setattr(module, name, replacement)
            wrapped += inside
        if policy(module=module, recurse=False, unwrapped_params=count - wrapped, module_is_root=is_root):
            return self.wrap(module, overrides), count
        return module, wrapped


@contextmanager
def enable_wrap(
    auto_wrap_policy: Policy | None = None,
    wrapper_cls: Callable[..., nn.Module] = FullyShardedDataParallel,
    **wrapper_kwargs: Any,
) -> Iterator[None]:
    """Inside, wrap() and auto_wrap() wrap with these arguments."""
    if _Scope.current is not None:
        raise NotImplementedError("enable_wrap: expected no other enable_wrap around it")
    _Scope.current = _Scope(auto_wrap_policy, wrapper_cls, wrapper_kwargs)
    try:
        yield
    finally:
        _Scope.current = None


def wrap(module: nn.Module, **wrap_overrides: Any) -> nn.Module:
    """The module, wrapped if an enable_wrap is around. Of the same argument the last wins: that of enable_wrap, of
    `module.wrapper_config`, of this call."""
    return module if _Scope.current is None else _Scope.current.wrap(module, wrap_overrides)


def auto_wrap(module: nn.Module, auto_wrap_policy: Policy | None = None, **kwargs: Any) -> nn.Module:
    """The module, in which what the policy chooses is wrapped, from the inside out, if an enable_wrap is around."""
    scope = _Scope.current
    if scope is None:
        return module
    if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
        raise ValueError("auto_wrap: expected a module without wrapped parts, got one with some")
    return scope.wrap_inside(module, auto_wrap_policy or scope.policy, kwargs, True)[0]
