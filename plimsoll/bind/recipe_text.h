// Recipes as Python hands them over: JSON.
#pragma once

#include <string_view>

#include "plimsoll/ops/scaling/scaling_step.h"

namespace plimsoll::bind {

// recipe::from_json, and amax_function and inv_scale_function: numbers of functions of Python's. A mistake is Python's
// ValueError. Each text is parsed once.
ops::SharedRecipe recipe_of(std::string_view json);

}  // namespace plimsoll::bind
