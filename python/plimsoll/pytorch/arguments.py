"""Arguments of Transformer Engine that have one meaning here, or none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from plimsoll._arguments import check_choice, check_dense, check_flag, check_number, check_size, check_sizes, check_tensor, shown
from plimsoll.common.recipe import Recipe

__all__ = ["check_choice", "check_dense", "check_flag", "check_number", "check_size", "check_sizes", "check_tensor", "shown"]

# Accepted at these values and refused by name at any other: overlap of communication and CUDA's products, and what is
# fused into CUDA kernels.
ONLY = {
    "delay_wgrad_compute": False,
    "symmetric_ar_type": None,
    "return_layernorm_output_gathered": False,
    "ub_name": None,
}
UB = {
    "ub_overlap_ag": False,
    "ub_overlap_rs": False,
    "ub_overlap_rs_dgrad": False,
    "ub_bulk_dgrad": False,
    "ub_bulk_wgrad": False,
}
# Hints for CUDA, of no consequence here.
HINTS = ("seq_length", "micro_batch_size")


def check_rest(where: str, rest: Mapping[str, Any], only: Mapping[str, Any], hints: tuple[str, ...] = ()) -> None:
    """`rest`: the keyword arguments that `where` does not name; `only`: those that Transformer Engine has, and the one
    value that makes sense here."""
    for name, value in rest.items():
        if name in hints:
            continue
        if name not in only:
            raise TypeError(f"{where}: got an unexpected keyword argument '{name}'")
        default = only[name]
        if value is not default and value != default:
            raise NotImplementedError(f"{where}: expected {name}={default!r}, got {value!r}")


def check_epsilon(where: str, name: str, value: Any) -> float:
    number = check_number(where, name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{where}: expected {name} that is finite and >= 0, got {value!r}")
    return number


def check_positive(where: str, name: str, value: Any) -> float:
    number = check_number(where, name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{where}: expected {name} that is finite and > 0, got {value!r}")
    return number


def check_dropout(where: str, name: str, value: Any, may_be_all: bool = False) -> float:
    """may_be_all: where what stays does not grow by 1 / (1 - dropout) in our own kernel."""
    number = check_number(where, name, value)
    if not (0 <= number < 1 or (may_be_all and number == 1)):
        raise ValueError(f"{where}: expected {name} in [0, 1{']' if may_be_all else ')'}, got {value!r}")
    return number


def check_enabled(where: str, enabled: Any, recipe_name: str) -> bool:
    """`enabled` of a scope, in whose place a recipe without its keyword, `recipe_name`, comes."""
    if isinstance(enabled, Recipe):
        raise TypeError(f"{where}: expected enabled True or False, got {shown(enabled)}: pass a recipe as {recipe_name}=...")
    return check_flag(where, "enabled", enabled)


FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
DTYPES = {name: dtype for dtype, name in FORMATS.items()}


def format_of(where: str, dtype: torch.dtype) -> str:
    if dtype not in FORMATS:
        raise TypeError(f"{where}: expected float32, bfloat16 or float16, got {dtype}")
    return FORMATS[dtype]
