// Functions of a recipe, which are Python's: torch.ops.plimsoll.recipe_amax and recipe_inv_scale.
#pragma once

#include "plimsoll/recipe/delayed_scaling.h"

namespace plimsoll::bind {

// Functions of the recipe with this number (plimsoll/common/recipe_functions.py). What they raise comes through.
recipe::AmaxFunction amax_function(int64_t number);
recipe::InvScaleFunction inv_scale_function(int64_t number);

}  // namespace plimsoll::bind
