// Variable that an option's value goes to, with the values that it takes. The variable's value at the time of binding
// is the default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/train/loss_scale.h"
#include "plimsoll/app/train/train_options.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::cli {

struct Field {
  enum class Values : uint8_t { kSwitch, kOptional, kOne, kMany };

  Values values = Values::kOne;
  // Checks and stores what was typed. Throws app::UsageError that opens with `label`, the option as typed.
  std::function<void(const std::string& label, const std::vector<std::string>& typed)> set;
  // The present value; null if there is none.
  std::function<nlohmann::json()> get;
};

template <class T>
struct Range {
  T from = std::numeric_limits<T>::lowest();
  T to = std::numeric_limits<T>::max();
};
// The least number of a range that is said to be above 0.
inline constexpr double kAboveZero = 1e-30;

Field integer(int64_t& target, Range<int64_t> range);
Field integer(std::optional<int64_t>& target, Range<int64_t> range);
// Comma-separated.
Field integers(std::vector<int64_t>& target, Range<int64_t> range);
Field number(double& target, Range<double> range);
Field number(std::optional<double>& target, Range<double> range);
Field toggle(bool& target);
Field text(std::string& target);
Field text(std::optional<std::string>& target);
Field texts(std::vector<std::string>& target);
// Comma-separated, none of them empty.
Field names(std::vector<std::string>& target);
// One of `names`, whose index goes to `set`.
Field choice(std::vector<std::string_view> names, std::function<void(size_t)> set, std::function<nlohmann::json()> get);
// The value of a name of the table, a range of recipe::Named. A target whose value has no name there has none yet.
template <class T, class Table>
Field choice(T& target, Table table) {
  return choice(
      recipe::names_of(table), [&target, table](size_t row) { target = std::data(table)[row].value; },
      [&target, table] {
        for (const auto& [name, value] : table) {
          if (value == target) return nlohmann::json(name);
        }
        return nlohmann::json();
      });
}
// Comma-separated, each one of `names`: their indices go to `set`.
Field choices(std::vector<std::string_view> names, std::function<void(const std::vector<size_t>&)> set,
              std::function<nlohmann::json()> get);
template <class T, class Table>
Field choices(std::vector<T>& target, Table table) {
  return choices(
      recipe::names_of(table),
      [&target, table](const std::vector<size_t>& rows) {
        target.clear();
        for (const size_t row : rows) target.push_back(std::data(table)[row].value);
      },
      [&target, table] {
        nlohmann::json names = nlohmann::json::array();
        for (const T& value : target) names.push_back(recipe::name_of(table, value));
        return names;
      });
}
// A recipe's name, or its JSON object.
Field recipe(app::ChosenRecipe& target);
// The same of a run that trains: `auto`, too.
Field training_recipe(app::ChosenRecipe& target);
// Help of an option that is one, with every name.
std::string training_recipe_help();
// Comma-separated, each as for training.
Field recipes(std::vector<app::ChosenRecipe>& target);
// Two words: a recipe, and a share in (0, 1].
Field finish_in(std::optional<app::FinishIn>& target);
// app::parse_loss_scale.
Field loss_scale(app::LossScale& target);

// The field, of which `typed` hears when it is set: it gets the option as typed.
Field noted(Field field, std::vector<std::string>& typed);

enum class PathMust : uint8_t { kNothing, kExist };
Field path(std::filesystem::path& target, PathMust must = PathMust::kNothing);
// Asked for without a path: set to an empty one.
Field optional_path(std::optional<std::filesystem::path>& target);
Field existing_paths(std::vector<std::filesystem::path>& target);

}  // namespace plimsoll::cli
