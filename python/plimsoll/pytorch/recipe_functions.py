"""Functions that C++ calls when an amax history or a scale is a recipe's own function."""

from __future__ import annotations

import torch

from plimsoll.common.recipe_functions import recipe_of, takes_margin

_library = torch.library.Library("plimsoll", "IMPL")


@torch.no_grad()
def _amax(history: torch.Tensor, number: int) -> float:
    return float(recipe_of(number).amax_compute_algo(history))


@torch.no_grad()
def _inv_scale(amax: torch.Tensor, old_inv_scale: torch.Tensor, max_finite: torch.Tensor, margin: int, number: int) -> float:
    recipe = recipe_of(number)
    function = recipe.scaling_factor_compute_algo
    return float(function(amax, old_inv_scale, max_finite, margin if takes_margin(function) else recipe))


_library.impl("recipe_amax", _amax, "CPU")
_library.impl("recipe_inv_scale", _inv_scale, "CPU")
