"""Scaled tensors: value = data * scale, where scale is a power of two, or a positive number for each row, channel or block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from plimsoll._torch_internals import has_scaled_key, is_fake, outside_of_transforms
from plimsoll.autoscale import policy as policies
from plimsoll.autoscale.policy import Policy
from plimsoll.autoscale.session import FORMATS, new_session

_ops = torch.ops.plimsoll


def is_scaled(x: object) -> bool:
    if isinstance(x, torch.Tensor) and not torch.compiler.is_compiling():  # Dynamo warns of what it cannot trace
        x = outside_of_transforms(x)
    return isinstance(x, torch.Tensor) and has_scaled_key(x)


def _scale(scale: float | torch.Tensor | None) -> torch.Tensor:
    """Python's number in FP64; None: 1."""
    return scale if isinstance(scale, torch.Tensor) else torch.tensor(1.0 if scale is None else scale, dtype=torch.float64)


def _check_scaled(x: torch.Tensor, name: str) -> None:
    if not is_scaled(x):
        raise TypeError(
            f"{name}: expected a scaled tensor, as from scaled_array() or as_scaled(), got a plain {type(x).__name__}"
        )


def scaled_array(data: torch.Tensor, scale: float | torch.Tensor | None = 1, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The tensor data * scale. data are float16, bfloat16 or float32 and stay so, or are rounded to `dtype`, one of these; scale
    is any positive number, 0 for zeros, None for 1, or a tensor whose sizes divide the data's, from the last dimension on: a
    scale for each row, channel or block."""
    if dtype is None and data.dtype not in FORMATS:
        names = ", ".join(str(each) for each in FORMATS)
        raise TypeError(f"scaled_array: expected data of one of {names}, or one of them as dtype, got data of {data.dtype}")
    scaled: torch.Tensor = _ops.autoscale_scaled_array(data, _scale(scale), new_session(dtype or data.dtype))
    return scaled


def forward_mode_error() -> NotImplementedError:
    return NotImplementedError(
        "autoscale: expected reverse mode (grad, vjp, jacrev), got a scaled tensor in forward mode, as jvp, jacfwd, linearize "
        "and hessian have it; jacrev(jacrev(f)) is a Hessian"
    )


class _Leave(torch.autograd.Function):
    """Value of a gradient that leaves scaled tensors; its own gradient enters again."""

    @staticmethod
    def forward(x: torch.Tensor, session: Any) -> Any:
        return _ops.autoscale_value(x)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
        context.session = inputs[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, session: Any) -> tuple[Any, int | None]:
        return _Leave.apply(x, session), in_dims[0]  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return enter(grad, context.session), None

    @staticmethod
    def jvp(context: Any, *tangents: Any) -> NoReturn:
        raise forward_mode_error()


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, session: Any) -> Any:
        return _ops.autoscale_as_scaled(x, session)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
        context.session = inputs[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, session: Any) -> tuple[Any, int | None]:
        return _Enter.apply(x, session), in_dims[0]  # type: ignore[no-untyped-call]  # one scale for the batch

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Leave.apply(grad, context.session) if is_scaled(grad) else grad, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(context: Any, *tangents: Any) -> NoReturn:
        raise forward_mode_error()


def enter(x: torch.Tensor, session: Any) -> torch.Tensor:
    """x as a scaled tensor of a session; its gradient is a plain one again."""
    if is_scaled(x):
        return x
    if torch.compiler.is_compiling() or is_fake(x):
        raise RuntimeError(
            "autoscale: expected a tensor with memory, as eager mode has them; torch.compile and FakeTensor mode cannot look into "
            "a scaled tensor"
        )
    entered: torch.Tensor = _Enter.apply(x, session)  # type: ignore[no-untyped-call]
    return entered


def as_scaled(
    x: torch.Tensor,
    scale: float | torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float16,
    policy: str | Policy = policies.autoscale,
) -> torch.Tensor:
    """x as a scaled tensor. scale: as of scaled_array(); None: the policy's; autoscale's brings the rms of the data nearest to
    1."""
    if scale is not None and _scale(scale).numel() != 1:
        scaled: torch.Tensor = _ops.autoscale_as_scaled_with(value(x), scale, new_session(dtype, policy=policy))
        return scaled
    if is_scaled(x):
        return x if scale is None else set_scale(x, scale)
    scaled = enter(x, new_session(dtype, policy=policy))
    return scaled if scale is None else set_scale(scaled, scale)


def value(x: torch.Tensor) -> torch.Tensor:
    """data * scale as a plain FP32 tensor, outside of autograd; a plain tensor is its own."""
    return _ops.autoscale_value(x) if is_scaled(x) else x


def get_data_scale(x: torch.Tensor) -> tuple[torch.Tensor, float | torch.Tensor]:
    """The data, which are not copied, and the scale, a tensor where it is no power of two for all. A plain tensor's scale is 1;
    that of an exact zero is 0."""
    if not is_scaled(x):
        return x, 1.0
    scale = _ops.autoscale_scale(x)
    return _ops.autoscale_data(x), scale if scale.dim() > 0 or scale.dtype == torch.float32 else scale.item()


class _Rescale(torch.autograd.Function):
    """The same value in other parts, which `operator` makes: nothing to differentiate."""

    @staticmethod
    def forward(x: torch.Tensor, operator: Callable[..., Any], scale: torch.Tensor) -> Any:
        return operator(x, scale)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, operator: Callable[..., Any], scale: torch.Tensor
    ) -> tuple[Any, int | None]:
        return _Rescale.apply(x, operator, scale), in_dims[0]  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad, None, None


def set_scale(x: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """The same value with this scale."""
    _check_scaled(x, "set_scale")
    scaled: torch.Tensor = _Rescale.apply(x, _ops.autoscale_set_scale, _scale(scale))  # type: ignore[no-untyped-call]
    return scaled


def rebalance(x: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """The same value with data / scale and its own scale * scale."""
    _check_scaled(x, "rebalance")
    scaled: torch.Tensor = _Rescale.apply(x, _ops.autoscale_rebalance, _scale(scale))  # type: ignore[no-untyped-call]
    return scaled


def _dynamic_rescale(x: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    if not math.isfinite(number := float(size)) or number == 0:
        return x
    return rebalance(x, 2.0 ** round(math.log2(number)))


def _data(x: torch.Tensor, name: str) -> torch.Tensor:
    _check_scaled(x, name)
    return get_data_scale(x)[0].float()


def dynamic_rescale_max(x: torch.Tensor) -> torch.Tensor:
    """The same value with data whose largest magnitude is 1, to the nearest power of two."""
    return _dynamic_rescale(x, _data(x, "dynamic_rescale_max").abs().amax())


def dynamic_rescale_l1(x: torch.Tensor) -> torch.Tensor:
    """The same value with data whose mean magnitude is 1, to the nearest power of two."""
    return _dynamic_rescale(x, _data(x, "dynamic_rescale_l1").abs().mean())


def dynamic_rescale_l2(x: torch.Tensor) -> torch.Tensor:
    """The same value with data whose root mean square is 1, to the nearest power of two."""
    return _dynamic_rescale(x, _data(x, "dynamic_rescale_l2").square().mean().sqrt())
