#include "plimsoll/app/parse_recipe.h"

#include <stdexcept>
#include <utility>

#include "plimsoll/app/error.h"

namespace plimsoll::app {

ChosenRecipe parse_recipe(const std::string& text) {
  try {
    return {text, text.starts_with('{') ? recipe::from_json(text) : recipe::by_name(text)};
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

ChosenRecipe parse_training_recipe(const std::string& text) {
  if (!recipe::is_automatic(text)) return parse_recipe(text);
  try {
    recipe::Automatic automatic = recipe::automatic_from_text(text);
    recipe::Recipe narrow = automatic.at({});
    return {text, std::move(narrow), std::move(automatic)};
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace plimsoll::app
