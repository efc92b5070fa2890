// The recipe that a person asked for.
#pragma once

#include <string>

#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

struct ChosenRecipe {
  std::string text;  // a name or JSON, as typed
  recipe::Recipe value;
};

// Throws UsageError.
ChosenRecipe parse_recipe(const std::string& text);

}  // namespace plimsoll::app
