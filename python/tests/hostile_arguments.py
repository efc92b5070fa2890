"""Arguments of an operator as a plan that can be changed before a tensor of it is made."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
OTHER_DTYPES = [
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]
HUGE_INTS = [2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**31), -(2**63)]
FLOAT_VALUES = [math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 2.0, 1e-45, 1e38, 1e39, 1e308, -1e-5]
WORDS = [
    "",
    "nonsense",
    "fp32",
    "e4m3",
    "e5m2",
    "e8m0",
    "gelu",
    "swiglu",
    "layernorm",
    "rmsnorm",
    "output",
    "grad_weight",
    "mean",
    "none",
    "up",
    "down",
    "row",
    "causal",
    "no_mask",
    '"fp8"',
    '"mxfp8"',
    '"nvfp4"',
    '"mxfp4"',
    "{}",
    "[" * 2000,
    "null",
    "a\0b",
    "x" * 5000,
]


@dataclasses.dataclass
class Planned:
    """A tensor to be made in guarded memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    fill: Any = "normal"  # "normal", "codes", a number, or (low, high) of integers
    layout: str = "dense"
    at_end: bool = True
    device: str = "cpu"
    grad: bool = False

    def made(self, memory, draw):
        if self.device == "meta":
            return torch.empty([max(size, 0) for size in self.shape], dtype=self.dtype, device="meta")
        tensor = self._laid_out(memory, draw)
        return tensor.requires_grad_() if self.grad and tensor.is_floating_point() and tensor.is_leaf else tensor

    def _laid_out(self, memory, draw):
        shape = [max(size, 0) for size in self.shape]
        if self.layout == "transposed" and len(shape) > 1:
            return self._filled(memory, shape[::-1], draw).permute(*range(len(shape) - 1, -1, -1))
        if self.layout == "gaps" and shape and shape[-1]:
            return self._filled(memory, [*shape[:-1], 2 * shape[-1]], draw)[..., ::2]
        if self.layout == "expanded" and shape:
            dim = draw.randrange(len(shape))
            narrow = [1 if i == dim else size for i, size in enumerate(shape)]
            return self._filled(memory, narrow, draw).expand(shape)
        if self.layout == "overlapping" and shape and all(shape):
            flat = self._filled(memory, [sum(shape)], draw)
            return flat.as_strided(shape, [1] * len(shape))
        tensor = self._filled(memory, shape, draw)
        if self.layout == "sparse" and tensor.is_floating_point() and shape:
            return tensor.to_sparse()
        return torch._neg_view(tensor) if self.layout == "negated" and tensor.is_floating_point() else tensor

    def _filled(self, memory, shape, draw):
        tensor = memory.empty(shape, self.dtype, self.at_end)
        if isinstance(self.fill, tuple):
            return tensor.copy_(torch.randint(self.fill[0], self.fill[1], shape))
        if self.fill == "codes":
            return tensor.copy_(torch.randint(0, 256, shape).to(torch.uint8))
        if self.fill == "normal":
            return tensor.copy_(torch.randn(shape))
        return tensor.copy_(torch.full(shape, self.fill, dtype=torch.float64 if isinstance(self.fill, float) else torch.int64))


def T(*shape, **rest):
    return Planned(shape, **rest)


def codes(*shape):
    return T(*shape, dtype=torch.uint8, fill="codes")


def whole_numbers(*shape, below):
    return T(*shape, dtype=torch.int64, fill=(0, below))


@dataclasses.dataclass
class Made:
    """Argument that only a call can make, such as a session."""

    make: Callable[[], Any]


LAYOUTS = ["transposed", "gaps", "expanded", "overlapping", "sparse", "negated"]
FILLS = [math.nan, math.inf, -math.inf, 0, 1, -1, 255, 1e38, (-5, 5), (0, 2**62), (-(2**62), 0)]


def mutated_tensor(planned, draw):
    shape = list(planned.shape)
    kind = draw.choice(["size", "size", "rank", "dtype", "dtype", "layout", "layout", "fill", "device", "start", "grad"])
    if kind == "size" and shape:
        dim = draw.randrange(len(shape))
        shape[dim] = draw.choice([0, 1, shape[dim] - 1, shape[dim] + 1, 2 * shape[dim], 3, 16, 17, 65])
    elif kind in ("size", "rank"):
        change = draw.randrange(4)
        shape = [[], shape[1:], [*shape, 1], [draw.choice([0, 1, 2]), *shape]][change]
    elif kind == "dtype":
        return dataclasses.replace(planned, dtype=draw.choice(FLOATS + OTHER_DTYPES))
    elif kind == "layout":
        return dataclasses.replace(planned, layout=draw.choice(LAYOUTS))
    elif kind == "fill":
        fill = draw.choice(FILLS)
        # Torch refuses to make integers of what is not finite.
        finite = isinstance(fill, tuple) or math.isfinite(fill)
        return dataclasses.replace(planned, fill=fill if finite or planned.dtype.is_floating_point else -1)
    elif kind == "device":
        return dataclasses.replace(planned, device="meta")
    elif kind == "grad":
        return dataclasses.replace(planned, grad=True)
    else:
        return dataclasses.replace(planned, at_end=False)
    return dataclasses.replace(planned, shape=tuple(shape))


def mutated_int(value, draw):
    return draw.choice([-1, 0, 1, 2, value - 1, value + 1, 15, 255, *HUGE_INTS])


def mutated_list(values, draw):
    values = list(values)
    change = draw.randrange(6)
    if change == 0:
        return []
    if change == 1:
        return values + values[-1:]
    if change == 2 or not values:
        return values[:-1]
    place = draw.randrange(len(values))
    values[place] = mutated(values[place], draw)
    return values


def mutated(value, draw):
    """Another argument in its place, most often of the same kind."""
    if draw.random() < 0.04:
        return draw.choice([None, 0, -1, 1.5, True, "", [], Planned((2, 3))])
    if isinstance(value, Planned):
        return None if draw.random() < 0.03 else mutated_tensor(value, draw)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return mutated_int(value, draw)
    if isinstance(value, float):
        return draw.choice(FLOAT_VALUES)
    if isinstance(value, str):
        return draw.choice(WORDS)
    if isinstance(value, torch.dtype):
        return draw.choice(FLOATS + OTHER_DTYPES)
    if isinstance(value, list):
        return mutated_list(value, draw)
    if isinstance(value, dict):
        name = draw.choice(list(value))
        return {**value, name: mutated(value[name], draw)}
    if value is None:
        return draw.choice([Planned((2, 3)), Planned((4,)), Planned(()), True, False, 1, "", None])
    return value


def made(value, memory, draw):
    if isinstance(value, Planned):
        return value.made(memory, draw)
    if isinstance(value, Made):
        return value.make()
    if isinstance(value, list):
        return [made(each, memory, draw) for each in value]
    if isinstance(value, dict):
        return {name: made(each, memory, draw) for name, each in value.items()}
    return value


def described(value):
    if isinstance(value, Planned):
        words = [str(value.dtype).removeprefix("torch."), *([] if value.layout == "dense" else [value.layout])]
        words += ["meta"] if value.device == "meta" else []
        words += [] if value.fill == "normal" else [f"of {value.fill}"]
        return f"<{list(value.shape)} {' '.join(words)}{' grad' if value.grad else ''}{'' if value.at_end else ' after a page'}>"
    if isinstance(value, list):
        return "[" + ", ".join(map(described, value)) + "]"
    if isinstance(value, Made):
        return "<made>"
    text = repr(value)
    return text if len(text) < 60 else text[:50] + "..."
