// Recipes as Python hands them over: JSON.
#pragma once

#include <string_view>

#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/recipe/automatic.h"

namespace plimsoll::bind {

// recipe::from_json, and amax_function and inv_scale_function: numbers of functions of Python's. A mistake is Python's
// ValueError. Each text is parsed once. Of the recipe `auto`: its narrow one.
ops::SharedRecipe recipe_of(std::string_view json);

// Whether it is recipe::to_json of the recipe `auto`: the scope's controller chooses the formats of each layer.
bool is_auto(std::string_view json);

// Recipe of a text, as recipe::automatic_from_text reads it. A mistake is Python's ValueError.
recipe::Automatic automatic_of(std::string_view text);

}  // namespace plimsoll::bind
