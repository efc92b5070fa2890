#include "plimsoll/bind/recipe_text.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "plimsoll/bind/recipe_functions.h"

namespace plimsoll::bind {

namespace {

using Json = nlohmann::json;

std::optional<int64_t> take_number(Json& arguments, const char* name) {
  const auto found = arguments.find(name);
  if (found == arguments.end()) return std::nullopt;
  const auto number = found->get<int64_t>();
  arguments.erase(found);
  return number;
}

// recipe::from_json's text, in which a function has a number.
recipe::Recipe parse(std::string_view text) {
  if (text.find("_function\"") == std::string_view::npos) return recipe::from_json(text);
  Json arguments = Json::parse(text);
  const std::optional<int64_t> amax = take_number(arguments, "amax_function");
  const std::optional<int64_t> inv_scale = take_number(arguments, "inv_scale_function");
  const recipe::Recipe plain = recipe::from_json(arguments.dump());
  recipe::DelayedScaling delayed = *plain.delayed();
  if (amax) delayed.amax_compute_algo = amax_function(*amax);
  if (inv_scale) delayed.scaling_factor_compute_algo = inv_scale_function(*inv_scale);
  return delayed;
}

}  // namespace

ops::SharedRecipe recipe_of(std::string_view json) {
  // The layers of a model bring the same text, one after the other.
  thread_local std::string last_json;
  thread_local ops::SharedRecipe last;
  if (last == nullptr || json != last_json) {
    try {
      last = std::make_shared<const recipe::Recipe>(parse(json));
    } catch (const std::invalid_argument& error) {
      TORCH_CHECK_VALUE(false, error.what());
    }
    last_json = json;
  }
  return last;
}

}  // namespace plimsoll::bind
