"""Settings of one use of autoscale: the format of the data, how they round, and where their scales come from."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from plimsoll.autoscale import policy as policies

FORMATS = (torch.float16, torch.bfloat16, torch.float32)  # of data
# Formats of the operands of products: values, and gradients.
_MATMUL_FORMATS = {
    None: (None, None),
    "e4m3": ("e4m3", "e4m3"),
    "e5m2": ("e5m2", "e5m2"),
    "hybrid": ("e4m3", "e5m2"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": ("mxfp4", "mxfp8"),
}
_ROUNDINGS = ("nearest", "stochastic", "remainder")


def new_session(
    dtype: torch.dtype = torch.float16,
    rounding: str = "remainder",
    policy: str | policies.Policy = policies.autoscale,
    counts_range: bool = False,
    matmul_format: str | None = None,
) -> Any:
    if dtype not in FORMATS:
        names = ", ".join(str(each) for each in FORMATS)
        raise ValueError(f"autoscale: expected dtype to be one of {names}, got {dtype}")
    if rounding not in _ROUNDINGS:
        raise ValueError(f"autoscale: expected rounding to be one of {', '.join(_ROUNDINGS)}, got {rounding!r}")
    if not isinstance(matmul_format, str | None) or matmul_format not in _MATMUL_FORMATS:
        names = ", ".join(str(each) for each in _MATMUL_FORMATS)
        raise ValueError(f"autoscale: expected matmul_format to be one of {names}, got {matmul_format!r}")
    policy = policies.parse(policy)
    product_values, product_gradients = _MATMUL_FORMATS[matmul_format]
    session = torch.ops.plimsoll.autoscale_session(
        dtype=dtype,
        rounding=rounding,
        method=policy.method,
        exponent=policy.exponent,
        product_values=product_values,
        product_gradients=product_gradients,
        counts_range=counts_range,
    )
    if policy.loss_scale is not None:
        session.set_gradient_exponent(-policy.loss_scale.exponent)
    return session


# Sessions of the modules that autoscale() was given.
_remembered: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def remember(module: torch.nn.Module, session: Any) -> None:
    _remembered[module] = session


def remembered(module: torch.nn.Module) -> Any:
    """None, where autoscale() was not given this very module."""
    return _remembered.get(module)


def session_of(tensor: torch.Tensor) -> Any:
    return torch.ops.plimsoll.autoscale_session_of(tensor)
