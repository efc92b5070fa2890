"""Any PyTorch model on scaled tensors: data in 16 bits, and a power of two beside them. See docs/autoscale.md.

The module is a function, too::

    model = plimsoll.autoscale(model, dtype=torch.float16)
"""

import sys
from types import ModuleType
from typing import Any

from plimsoll.autoscale import forward_mode, policy, printing
from plimsoll.autoscale.inspection import Call, Inspection, inspect
from plimsoll.autoscale.packing import ScaledArray, pack, unpack
from plimsoll.autoscale.report import OpCalls, Report, report
from plimsoll.autoscale.rule import rule
from plimsoll.autoscale.tensors import (
    as_scaled,
    dynamic_rescale_l1,
    dynamic_rescale_l2,
    dynamic_rescale_max,
    get_data_scale,
    is_scaled,
    rebalance,
    scaled_array,
    set_scale,
    value,
)
from plimsoll.autoscale.transform import autoscale, gradients_as_values

__all__ = [
    "Call",
    "Inspection",
    "OpCalls",
    "Report",
    "ScaledArray",
    "as_scaled",
    "autoscale",
    "dynamic_rescale_l1",
    "dynamic_rescale_l2",
    "dynamic_rescale_max",
    "get_data_scale",
    "gradients_as_values",
    "inspect",
    "is_scaled",
    "pack",
    "policy",
    "rebalance",
    "report",
    "rule",
    "scaled_array",
    "set_scale",
    "unpack",
    "value",
]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return autoscale(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
printing.install()
forward_mode.install()
