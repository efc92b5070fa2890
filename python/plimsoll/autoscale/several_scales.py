"""Scaled tensors with more than one scale, or one that is no power of two: per channel, row, batch item or block."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map

from plimsoll.autoscale.session import new_session

_ops = torch.ops.plimsoll
_aten = torch.ops.aten

# How report() names what had no rule for several scales.
ONE_SCALE = "autoscale::one_scale"


def _check_scale(scale: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """With as many dimensions as the data: in each the data's size, or a number of equal blocks."""
    if scale.dim() > data.dim():
        raise ValueError(f"scaled_array: expected a scale of at most {data.dim()} dimensions, got {list(scale.shape)}")
    scale = scale.detach().float().reshape([1] * (data.dim() - scale.dim()) + list(scale.shape))
    if any(blocks == 0 or size % blocks for blocks, size in zip(scale.shape, data.shape)):
        raise ValueError(f"scaled_array: expected a scale whose sizes divide {list(data.shape)}, got {list(scale.shape)}")
    if not (scale.isfinite() & (scale > 0)).all():
        raise ValueError("scaled_array: expected scales that are finite and larger than 0")
    return scale


def _spread(scale: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """A number for each element, or one that broadcasts."""
    for dim, (blocks, size) in enumerate(zip(scale.shape, sizes)):
        if blocks not in (1, size):
            scale = scale.repeat_interleave(size // blocks, dim)
    return scale


def _broadcast(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(1 in (m, n) or m == n for m, n in zip(a.shape, b.shape))


def _rounded(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rounded = data.to(dtype)
    if not rounded[data.isfinite()].isfinite().all():
        raise ValueError(f"scaled_array: expected data that {dtype} holds, got up to {data.abs().amax().item():g}")
    return rounded


def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Data in the session's format and a scale of as many dimensions, of a result in one scale."""
    return _ops.autoscale_data(x), torch.full([1] * x.dim(), 2.0 ** _ops.autoscale_exponent(x))


class SeveralScales(torch.Tensor):
    """value = data * scale; scale, FP32, broadcasts against the data, or has one number for each of equal blocks.

    Operators that a scale passes through keep it: transposes, signs, products, and products of matrices whose scales are those
    of rows of the left one and of columns of the right one. Any other operator sees a tensor of one scale, a power of two,
    rounded to the session's format; report() counts these conversions.
    """

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, session):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=torch.float32)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, session):
        self.data_part, self.scale_part, self.session = data, scale, session

    def __repr__(self, *, tensor_contents=None):
        return f"SeveralScales(data={self.data_part}, scale={self.scale_part})"

    def exact_value(self) -> torch.Tensor:
        return self.data_part.float() * _spread(self.scale_part, self.shape)

    def one_scale(self) -> torch.Tensor:
        self.session.count(ONE_SCALE)
        return _ops.autoscale_as_scaled(self.exact_value(), self.session)

    @staticmethod
    def of(x: torch.Tensor) -> SeveralScales:
        """A tensor of one scale as one of several."""
        if isinstance(x, SeveralScales):
            return x
        return SeveralScales(*parts(x), _ops.autoscale_session_of(x))

    def to_format(self, dtype: torch.dtype) -> SeveralScales:
        return several_scales(self.data_part, self.scale_part, dtype)

    def rebalanced(self, factor: torch.Tensor) -> SeveralScales:
        """The same value with data / factor and scale * factor."""
        factor = _check_scale(factor, self.data_part)
        scale = self.scale_part
        if not _broadcast(scale, factor):
            scale, factor = _spread(scale, self.shape), _spread(factor, self.shape)
        return self.rescaled(scale * factor)

    def rescaled(self, scale: torch.Tensor) -> SeveralScales:
        """The same value with this scale."""
        scale = _check_scale(scale, self.data_part)
        ratio = _spread(self.scale_part, self.shape) / _spread(scale, self.shape)
        return SeveralScales(_rounded(self.data_part.float() * ratio, self.data_part.dtype), scale, self.session)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        result = rule(*args, **kwargs) if rule is not None else None
        if result is not None:
            return result
        args, kwargs = tree_map(lambda x: x.one_scale() if isinstance(x, SeveralScales) else x, (args, kwargs))
        return func(*args, **kwargs)


def several_scales(data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> SeveralScales:
    """data * scale; data are rounded to dtype."""
    return SeveralScales(_rounded(data.detach(), dtype), _check_scale(scale, data), new_session(dtype))


# Rules: None where the scales do not allow for one.
def _on_data(function):
    """Of functions of degree 1, as scales are positive."""
    return lambda x: SeveralScales(function(x.data_part), x.scale_part, x.session)


def _on_both(function):
    return lambda x, *dims: SeveralScales(function(x.data_part, *dims), function(x.scale_part, *dims), x.session)


def _scaled(data: torch.Tensor, session) -> torch.Tensor:
    return _ops.autoscale_make(data, 0, session)


def _mul(a, b):
    if not isinstance(a, SeveralScales):
        a, b = b, a
    if not isinstance(b, SeveralScales):
        number = float(b) if not isinstance(b, torch.Tensor) or b.dim() == 0 else 0.0
        if number <= 0:
            return None
        return SeveralScales(a.data_part, a.scale_part * number, a.session)
    if a.shape != b.shape or not _broadcast(a.scale_part, b.scale_part):
        return None
    data, scale = parts(_scaled(a.data_part, a.session) * _scaled(b.data_part, a.session))
    return SeveralScales(data, a.scale_part * b.scale_part * scale, a.session)


def _mm(a, b):
    session = (a if isinstance(a, SeveralScales) else b).session
    left = a.scale_part if isinstance(a, SeveralScales) else torch.ones(1, 1)
    right = b.scale_part if isinstance(b, SeveralScales) else torch.ones(1, 1)
    # A scale along the dimension that is summed over is in each term another one.
    if left.shape[1] != 1 or right.shape[0] != 1 or left.shape[0] not in (1, a.shape[0]) or right.shape[1] not in (1, b.shape[1]):
        return None
    operands = [_scaled(x.data_part, session) if isinstance(x, SeveralScales) else x for x in (a, b)]
    data, scale = parts(operands[0] @ operands[1])
    return SeveralScales(data, left * right * scale, session)


_RULES = {
    _aten.detach.default: _on_data(torch.detach),
    _aten.clone.default: lambda x, memory_format=None: _on_data(torch.clone)(x),
    _aten.neg.default: _on_data(torch.neg),
    _aten.abs.default: _on_data(torch.abs),
    _aten.relu.default: _on_data(torch.relu),
    _aten.t.default: _on_both(torch.t),
    _aten.transpose.int: _on_both(torch.transpose),
    _aten.permute.default: _on_both(torch.permute),
    _aten.mul.Tensor: _mul,
    _aten.mul.Scalar: _mul,
    _aten.mm.default: _mm,
}
