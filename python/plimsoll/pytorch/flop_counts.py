"""Counts of torch.utils.flop_counter.FlopCounterMode for the library's operators, equal to those for torch's products and attention
of the same sizes. Products of codes count as others; norms, activations and quantizing count nothing, as torch's elementwise operators."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch

_log = logging.getLogger("torch.utils.flop_counter")
_level = _log.level
_log.setLevel(logging.ERROR)  # some versions of torch warn as they are imported that Triton's kernels are not counted
from torch.utils.flop_counter import register_flop_formula  # noqa: E402

_log.setLevel(_level)

Shape = Sequence[int]

# Places among the inputs of a layer (plimsoll/bind/layer.h): x, residual, norm weight and bias, weight, bias, fc2 weight and bias.
_X, _WEIGHT, _FC2_WEIGHT = 0, 4, 6


def _of_product(x: Shape, weight: Shape | None) -> int:
    return 0 if weight is None else 2 * math.prod(x[:-1]) * math.prod(weight)


@register_flop_formula(torch.ops.plimsoll.layer_pass)
def _layer_pass(inputs: Sequence[Shape | None], *_: Any, **__: Any) -> int:
    x = inputs[_X]
    assert x is not None
    return sum(_of_product(x, inputs[place]) for place in (_WEIGHT, _FC2_WEIGHT))


@register_flop_formula(torch.ops.plimsoll.layer_pass_backward)
def _layer_pass_backward(grad: Shape | None, *_: Any, parameters: Sequence[Shape | None], needs: int, **__: Any) -> int:
    """needs: a bit for each input whose gradient is asked for."""
    if grad is None:
        return 0
    flops = 0
    for place in (_WEIGHT, _FC2_WEIGHT):
        asked = bool(needs >> place & 1) + bool(needs & ((1 << place) - 1))  # of the weight; of anything before the product
        flops += asked * _of_product(grad, parameters[place])
    return flops


def _of_attention(products: int, query: Shape, key: Shape) -> int:
    """Products of queries x keys x channels."""
    batch, heads, queries, channels = query
    return products * 2 * batch * heads * queries * key[2] * channels


@register_flop_formula(torch.ops.plimsoll.attention_forward)
def _attention(query: Shape, key: Shape, *_: Any, **__: Any) -> int:
    return _of_attention(2, query, key)


@register_flop_formula(torch.ops.plimsoll.attention_backward)
def _attention_backward(grad: Shape, query: Shape, key: Shape, *_: Any, **__: Any) -> int:
    return _of_attention(5, query, key)  # the scores are made again


@register_flop_formula(torch.ops.plimsoll.attention_packed_backward)
def _attention_packed_backward(grad: Shape, qkv: Shape, *_: Any, heads: int, **__: Any) -> int:
    query = (qkv[0], heads, qkv[1], qkv[3])
    return _of_attention(5, query, query)
