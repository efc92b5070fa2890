#include "plimsoll/app/parse_recipe.h"

#include <stdexcept>

#include "plimsoll/app/error.h"

namespace plimsoll::app {

ChosenRecipe parse_recipe(const std::string& text) {
  try {
    return {text, text.starts_with('{') ? recipe::from_json(text) : recipe::by_name(text)};
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace plimsoll::app
