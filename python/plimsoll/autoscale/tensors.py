"""Scaled tensors: value = data * scale, where scale is a power of two, or what several_scales.py is for."""

from __future__ import annotations

import math

import torch

from plimsoll.autoscale import policy as policies
from plimsoll.autoscale.policy import Policy
from plimsoll.autoscale.session import new_session
from plimsoll.autoscale.several_scales import SeveralScales, several_scales

_ops = torch.ops.plimsoll


def _unwrapped(x: torch.Tensor) -> torch.Tensor:
    """What torch.func's transforms have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def is_scaled(x: object) -> bool:
    if isinstance(x, torch.Tensor) and not torch.compiler.is_compiling():  # Dynamo warns of what it cannot trace
        x = _unwrapped(x)
    return isinstance(x, SeveralScales) or (isinstance(x, torch.Tensor) and _ops.autoscale_is_scaled(x))


def exponent_of(scale: float | torch.Tensor, name: str) -> int:
    number = float(scale)
    mantissa, exponent = math.frexp(number)
    if mantissa != 0.5:
        raise ValueError(f"{name}: expected a scale that is a power of two, got {number}")
    return exponent - 1


def is_several(scale: float | torch.Tensor | None) -> bool:
    """Whether it is more than one number, or one that is no power of two. What is no scale at all is left to exponent_of()."""
    if scale is None or (isinstance(scale, torch.Tensor) and scale.numel() != 1):
        return scale is not None
    number = float(scale)
    return math.isfinite(number) and number > 0 and math.frexp(number)[0] != 0.5


def _check_scaled(x: torch.Tensor, name: str) -> None:
    if not is_scaled(x):
        raise TypeError(f"{name}: expected a scaled tensor, as from scaled_array() or as_scaled(), got a plain {type(x).__name__}")


def scaled_array(data: torch.Tensor, scale: float | torch.Tensor | None = 1, *, dtype: torch.dtype = torch.float16):
    """The tensor data * scale. data are rounded to `dtype`; scale is a power of two, 0 for zeros, None for 1; or any number, or a
    tensor whose sizes divide the data's, from the last dimension on: a scale for each row, channel or block."""
    if is_several(scale):
        return several_scales(data, torch.as_tensor(scale), dtype)
    session = new_session(dtype)
    if scale is None:
        scale = 1
    if float(scale) == 0:
        return _ops.autoscale_make(torch.zeros_like(data), 0, session)
    return _ops.autoscale_make(data, exponent_of(scale, "scaled_array"), session)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(x, session):
        return _ops.autoscale_as_scaled(x, session)

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x, session):
        return _Enter.apply(x, session), in_dims[0]  # one scale for the batch

    @staticmethod
    def backward(context, grad):
        return _ops.autoscale_value(grad) if is_scaled(grad) else grad, None


def enter(x: torch.Tensor, session) -> torch.Tensor:
    """x as a scaled tensor of a session; its gradient is a plain one again."""
    return x if is_scaled(x) else _Enter.apply(x, session)


def as_scaled(
    x: torch.Tensor,
    scale: float | torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float16,
    policy: str | Policy = policies.autoscale,
):
    """x as a scaled tensor. scale: as of scaled_array(); None: the policy's; autoscale's brings the rms of the data nearest to
    1."""
    if is_several(scale):
        return several_scales(value(x), torch.ones([]), torch.float32).rescaled(torch.as_tensor(scale)).to_format(dtype)
    if is_scaled(x):
        return x if scale is None else set_scale(x, scale)
    scaled = enter(x, new_session(dtype, policy=policy))
    return scaled if scale is None else set_scale(scaled, scale)


def value(x: torch.Tensor) -> torch.Tensor:
    """data * scale as a plain FP32 tensor, outside of autograd; a plain tensor is its own."""
    if isinstance(x, SeveralScales):
        return x.exact_value()
    return _ops.autoscale_value(x) if is_scaled(x) else x


def get_data_scale(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The data, which are not copied, and the scale. A plain tensor's scale is 1; that of an exact zero is 0."""
    if isinstance(x, SeveralScales):
        return x.data_part, x.scale_part
    if not is_scaled(x):
        return x, 1.0
    return _ops.autoscale_data(x), math.ldexp(1.0, max(_ops.autoscale_exponent(x), -1100))


class _Rescale(torch.autograd.Function):
    """The same value at another exponent: nothing to differentiate."""

    @staticmethod
    def forward(x, exponent):
        return _ops.autoscale_with_exponent(x, exponent)

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x, exponent):
        return _Rescale.apply(x, exponent), in_dims[0]

    @staticmethod
    def backward(context, grad):
        return grad, None


def set_scale(x: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """The same value with this scale."""
    _check_scaled(x, "set_scale")
    if isinstance(x, SeveralScales) or is_several(scale):
        return SeveralScales.of(x).rescaled(torch.as_tensor(scale))
    return _Rescale.apply(x, exponent_of(scale, "set_scale"))


def rebalance(x: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """The same value with data / scale and its own scale * scale."""
    _check_scaled(x, "rebalance")
    if isinstance(x, SeveralScales) or is_several(scale):
        return SeveralScales.of(x).rebalanced(torch.as_tensor(scale))
    return _Rescale.apply(x, _ops.autoscale_exponent(x) + exponent_of(scale, "rebalance"))


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
