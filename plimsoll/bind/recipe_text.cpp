#include "plimsoll/bind/recipe_text.h"

#include <c10/util/Exception.h>

#include <functional>
#include <map>
#include <mutex>
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
  if (is_auto(text)) return recipe::automatic_from_text(text).at({});
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
  static std::mutex mutex;
  static std::map<std::string, ops::SharedRecipe, std::less<>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(json);
  if (found != known.end()) return found->second;
  try {
    return known.emplace(json, std::make_shared<const recipe::Recipe>(parse(json))).first->second;
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

bool is_auto(std::string_view json) { return json.starts_with(R"({"name":"auto",)"); }

recipe::Automatic automatic_of(std::string_view text) {
  try {
    return recipe::automatic_from_text(text);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace plimsoll::bind
