"""Scopes in which modules are made with weights that are codes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll.common.recipe import Auto, Recipe
from plimsoll.pytorch.arguments import check_enabled
from plimsoll.pytorch.quantized_tensor import ONE_SCALE, QuantizedTensor


@dataclass(frozen=True)
class WeightsAsCodes:
    """Options of a module that holds its weights as codes; None in its place: it holds values."""

    preserve_high_precision_init_val: bool
    recipe: str = ONE_SCALE

    def initialized(self, parameter: torch.nn.Parameter, initializer: Callable[[torch.Tensor], Any]) -> torch.nn.Parameter:
        """`parameter` with the codes of what the initialiser draws; a new one where it has none yet."""
        values = torch.empty(parameter.shape, dtype=parameter.dtype)
        initializer(values)
        if isinstance(parameter, QuantizedTensor):
            parameter.quantize_(values)
        else:
            parameter = torch.nn.Parameter(QuantizedTensor.quantize(values, self.recipe), requires_grad=parameter.requires_grad)
        if self.preserve_high_precision_init_val:
            parameter._high_precision_init_val = values  # type: ignore[attr-defined]
        return parameter


class _Thread(threading.local):
    innermost: WeightsAsCodes | None = None


_thread = _Thread()


def weights_as_codes() -> WeightsAsCodes | None:
    """Options for the modules that are made now."""
    return _thread.innermost


@contextmanager
def quantized_model_init(
    enabled: bool = True, recipe: Recipe | None = None, preserve_high_precision_init_val: bool = False
) -> Iterator[None]:
    """Modules made inside hold the weights of their products as FP8 codes, and no other copy.

    recipe: codes are those that a layer under it makes of the values when they are written, so that it has the bits of one
    whose weights are these values. Where the gradient's product reads other codes (granularity "row", MXFP8), both are
    held: two bytes an element. None: codes of one scale, a power of two, one byte an element. Products under a recipe with
    codes of the same form read them as they are; those of others make theirs from the values.

    An optimizer writes through to the codes: steps smaller than half a code's
    distance are lost, so training wants FP32 master weights, for which `preserve_high_precision_init_val` keeps what
    the initialiser drew (``parameter.get_high_precision_init_val()``).
    """
    check_enabled("quantized_model_init", enabled, "recipe")
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(f"quantized_model_init: expected recipe a plimsoll.common.recipe.Recipe, got {recipe!r}")
    if isinstance(recipe, Auto):
        raise NotImplementedError(
            "quantized_model_init: expected a recipe whose formats stay, got Auto, whose wide products read weights as they are"
        )
    text = ONE_SCALE if recipe is None else recipe.to_json("fp32")
    if '_function"' in text:
        raise ValueError(f"quantized_model_init: expected a recipe without functions, got {recipe!r}")
    if recipe is not None and recipe.override_linear_precision[0]:
        raise ValueError(f"quantized_model_init: expected a recipe under which the output is a product of codes, got {recipe!r}")
    outer = _thread.innermost
    _thread.innermost = WeightsAsCodes(preserve_high_precision_init_val, text) if enabled else None
    try:
        yield
    finally:
        _thread.innermost = outer


fp8_model_init = quantized_model_init
