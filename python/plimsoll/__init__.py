"""Plimsoll: training in FP8, FP16 and BF16 that says how safe it is.

Importing it registers the operators ``torch.ops.plimsoll.*``. Modules: :mod:`plimsoll.pytorch`; recipes:
:mod:`plimsoll.common.recipe`. Scripts written for Transformer Engine change one name; see docs/python.md.
"""

from plimsoll._library import load

load()
