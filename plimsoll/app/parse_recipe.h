// The recipe that a person asked for.
#pragma once

#include <string>

#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

// By name or JSON. Throws UsageError.
recipe::Recipe parse_recipe(const std::string& text);

}  // namespace plimsoll::app
