// The recipe that a person asked for.
#pragma once

#include <optional>
#include <string>

#include "plimsoll/recipe/automatic.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

struct ChosenRecipe {
  std::string text;                                 // a name or JSON, as typed
  recipe::Recipe value;                             // of `auto` that of its narrow products
  std::optional<recipe::Automatic> automatic = {};  // of a run that chooses the format of each product

  // The recipe of `auto`'s wide products, which hold what each of them did and save the most bytes; or `value`.
  const recipe::Recipe& wide() const { return automatic ? automatic->wide() : value; }
};

// Throws UsageError.
ChosenRecipe parse_recipe(const std::string& text);
// The same for a run that trains, which `auto` may be the recipe of.
ChosenRecipe parse_training_recipe(const std::string& text);

}  // namespace plimsoll::app
