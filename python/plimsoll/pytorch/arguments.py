"""Arguments of Transformer Engine that have one meaning here, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# Accepted at these values and refused by name at any other: overlap of communication and CUDA's products, tensor and
# sequence parallelism, and what is fused into CUDA kernels.
ONLY = {
    "sequence_parallel": False,
    "fuse_wgrad_accumulation": False,
    "tp_group": None,
    "tp_size": 1,
    "get_rng_state_tracker": None,
    "rng_tracker_name": None,
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
INSTEAD = {
    "fuse_wgrad_accumulation": "let autograd accumulate into .grad",
    "tp_size": "train with torch's DistributedDataParallel, or FSDP2",
    "tp_group": "train with torch's DistributedDataParallel, or FSDP2",
    "sequence_parallel": "train with torch's DistributedDataParallel, or FSDP2",
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
            instead = f"; {INSTEAD[name]}" if name in INSTEAD else ""
            raise NotImplementedError(f"{where}: expected {name}={default!r}, got {value!r}{instead}")


def check_choice(where: str, name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ValueError(f"{where}: expected {name} one of {', '.join(repr(choice) for choice in choices)}, got {value!r}")
    return value


def check_size(where: str, name: str, value: Any, lowest: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{where}: expected {name} an integer, got {value!r}")
    if value < lowest:
        raise ValueError(f"{where}: expected {name} >= {lowest}, got {value}")
    return value


FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
DTYPES = {name: dtype for dtype, name in FORMATS.items()}


def format_of(where: str, dtype: torch.dtype) -> str:
    if dtype not in FORMATS:
        raise TypeError(f"{where}: expected float32, bfloat16 or float16, got {dtype}")
    return FORMATS[dtype]
