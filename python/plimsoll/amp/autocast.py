"""torch.autocast under one table of precisions for CPU and CUDA (docs/precision_policy.md)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from plimsoll.amp.precision_switch import hold_table, table_holds

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def default_device() -> str:
    """Of this machine: where its losses are likely to be."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class autocast(torch.autocast):
    """A drop-in for :class:`torch.autocast`: the same arguments and errors, a context manager and a decorator.

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
        RuntimeError: a device without autocast.
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        device_type = default_device() if device_type is None else device_type
        super().__init__(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        self._outside: list[dict[str, Any]] = []  # of each time that this scope was entered and not left

    def _changes_dtype(self) -> bool:
        return self._enabled and self.fast_dtype != self.prev_fastdtype

    def __enter__(self) -> autocast:
        super().__enter__()
        if self._changes_dtype():
            torch.clear_autocast_cache()
        self._outside.append(
            {
                "prev": self.prev,
                "prev_fastdtype": self.prev_fastdtype,
                "prev_cache_enabled": self.prev_cache_enabled,
                "_prev_holds": table_holds(),
            }
        )
        if self._enabled:
            hold_table(True)
        return self

    def __exit__(self, *error: Any) -> bool | None:
        self.__dict__.update(self._outside.pop())
        hold_table(self._prev_holds)
        if self._changes_dtype():
            torch.clear_autocast_cache()
        return super().__exit__(*error)

    def __call__(self, func: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        if not callable(func):
            return super().__call__(func)  # torch's error

        @functools.wraps(func)
        def decorated(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with self._again():
                return func(*args, **kwargs)

        return decorated

    def _again(self) -> autocast:
        """The same scope for one call: threads and recursion do not share what was outside."""
        again = copy.copy(self)
        again._outside = []
        return again
