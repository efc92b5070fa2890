"""Recipes: who picks the scale of each operand of eight or four bits, and when.

Names, fields and defaults are Transformer Engine's; what is ours says so. Recipes are values: scales and histories
belong to the modules. Auto alone, which is ours, has a state. docs/python.md lists what differs.
"""

from plimsoll.common.recipe.auto import Auto
from plimsoll.common.recipe.base import Format, MMParams, Recipe
from plimsoll.common.recipe.delayed import DelayedScaling
from plimsoll.common.recipe.eight_bits import Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling
from plimsoll.common.recipe.four_bits import MXFP4BlockScaling, NVFP4BlockScaling

# The names of the C++ library.
CurrentScaling = Float8CurrentScaling
BlockScaling = Float8BlockScaling
Mxfp8 = MXFP8BlockScaling
Nvfp4Scaling = NVFP4BlockScaling
Mxfp4Scaling = MXFP4BlockScaling

__all__ = [
    "Auto",
    "BlockScaling",
    "CurrentScaling",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP4BlockScaling",
    "MXFP8BlockScaling",
    "Mxfp4Scaling",
    "Mxfp8",
    "NVFP4BlockScaling",
    "Nvfp4Scaling",
    "Recipe",
]
