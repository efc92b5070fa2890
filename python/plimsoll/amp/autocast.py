"""torch.autocast under one table of precisions for CPU and CUDA (docs/precision_policy.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

from plimsoll._arguments import shown
from plimsoll._scope import Scope
from plimsoll.amp.precision_switch import table_held, table_holds

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_enter_autocast = torch.ops.plimsoll.enter_autocast.default
_clear_cache = torch.ops.plimsoll.clear_autocast_cache.default  # torch's own cannot be in a graph of torch 2.11


def default_device() -> str:
    """Device on which this machine's losses are likely to be."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _traced(
    device_type: str | None = None, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Iterator[None]:
    """The scope in the words of Python that torch.compile knows."""
    device_type = device_type or default_device()
    outside, holds = torch.get_autocast_dtype(device_type), table_holds()
    changes_dtype = enabled and dtype is not None and dtype != outside
    if changes_dtype:
        _clear_cache()
    with torch.autocast(device_type, dtype, enabled, cache_enabled), table_held(enabled or holds):
        try:
            yield
        finally:
            if changes_dtype:
                _clear_cache()


class autocast(Scope):
    """As :class:`torch.autocast`: the same arguments and errors, a context manager and a decorator.

    What it mends: on the CPU the operators that torch's CPU autocast leaves out compute in the precision that they have
    on CUDA (softmax, layer_norm, exp, log, sum and norm in fp32, for example); a scope may be entered again inside
    itself, as a recursive function under the decorator does; and where the dtype changes from one scope to the next, no
    weight is used in the other's cast.

    Args:
        device_type: "cpu", "cuda", ...; by default, as torch.cuda.amp.autocast() has none, "cuda" where there is one, else
            "cpu".
        dtype: torch.float16 or torch.bfloat16; by default the device's, bfloat16 on the CPU.
        enabled: False inside another scope switches it off there.
        cache_enabled: keep the casts of weights until the outermost scope ends; by default as outside.

    Raises:
        ValueError: device_type is not a str.
        TypeError: enabled is no truth value, but a recipe, say.
        RuntimeError: a device without autocast.
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not hasattr(enabled, "__bool__"):  # torch would take any object, and the library refuse it later
            raise TypeError(
                f"amp.autocast: expected enabled True or False, got {shown(enabled)}: "
                "a recipe is for plimsoll.pytorch.fp8_autocast(fp8_recipe=...)"
            )
        device_type = default_device() if device_type is None else device_type
        checked = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        self.device, self.fast_dtype = device_type, checked.fast_dtype
        self._enabled, self._cache_enabled = checked._enabled, checked._cache_enabled

    def __new__(cls, *args: Any, **kwargs: Any) -> autocast:
        if torch.compiler.is_compiling():
            return _traced(*args, **kwargs)  # type: ignore[return-value]
        return super().__new__(cls)

    def _open(self) -> None:
        _enter_autocast(self._owner, self.device, dtype=self.fast_dtype, enabled=self._enabled, cache_enabled=self._cache_enabled)

    def __call__(self, func: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        if not callable(func):
            raise TypeError(f"autocast()(func) requires a callable, but got {type(func).__name__}")

        arguments = self._arguments()

        @functools.wraps(func)
        def decorated(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with autocast(*arguments):
                return func(*args, **kwargs)

        return decorated

    def _arguments(self) -> tuple[Any, ...]:
        return self.device, self.fast_dtype, self._enabled, self._cache_enabled

    def __reduce__(self) -> Any:  # a copy owns its own scopes
        return type(self), self._arguments()
