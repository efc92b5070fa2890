"""torch.amp.custom_fwd and custom_bwd, under the precision table and without a lost gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from plimsoll.amp.autocast import autocast


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """Decorates `forward` of a :class:`torch.autograd.Function`; see :func:`torch.amp.custom_fwd`.

    No gradient is recorded inside `forward`: the cast of a weight that were kept from there would cut the weight off
    from its gradient in the rest of the outer scope. So none is.

    Args:
        device_type: "cpu", "cuda", ...
        cast_inputs: where autocast is on, inputs are cast to this dtype and autocast is off inside.
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    inside = torch.amp.custom_fwd(fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return inside(*args, **kwargs)
        finally:
            torch.set_autocast_cache_enabled(cached)

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorates `backward`: it runs under the autocast that `forward` ran under, with our table."""
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(context: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, dtype=context._dtype, enabled=context._fwd_used_autocast):
            return bwd(context, *args, **kwargs)

    return decorated
