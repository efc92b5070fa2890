"""Plimsoll: training in FP8, FP16 and BF16 that says how safe it is.

Importing it registers the operators ``torch.ops.plimsoll.*``. Modules: :mod:`plimsoll.pytorch`; recipes:
:mod:`plimsoll.common.recipe`; an existing model in FP8: :func:`convert`; a page about training runs: :func:`report`;
what overflows, and where: :func:`watch`; the format of every product and operator: :func:`audit`; plain PyTorch programs faster: :func:`accelerate`.
Scripts written for Transformer Engine change one name; see docs/python.md.
"""

from plimsoll._library import load

load()

import plimsoll.autoscale  # noqa: E402, F401  they use the operators
from plimsoll.accelerate import accelerate, accelerated, acceleration_report, reset_acceleration_report  # noqa: E402
from plimsoll.audit import audit  # noqa: E402
from plimsoll.convert import convert, convert_back  # noqa: E402
from plimsoll.report import report  # noqa: E402
from plimsoll.watch import enable_floating_point_exceptions, watch  # noqa: E402

__all__ = [
    "accelerate",
    "accelerated",
    "acceleration_report",
    "audit",
    "convert",
    "convert_back",
    "enable_floating_point_exceptions",
    "report",
    "reset_acceleration_report",
    "watch",
]
