#include "plimsoll/cli/field.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/recipe/names.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;
using Typed = std::vector<std::string>;

template <class T>
std::string describe(Range<T> range, std::string_view kind) {
  const Range<T> all;
  if (range.from == all.from && range.to == all.to) return fmt::format("{}", kind);
  if constexpr (std::is_same_v<T, double>) {
    if (range.from == kAboveZero && range.to == all.to) return fmt::format("{} above 0", kind);
  }
  if (range.to == all.to) return fmt::format("{} of at least {}", kind, range.from);
  return fmt::format("{} from {} to {}", kind, range.from, range.to);
}

template <class T>
T parse_number(const std::string& label, const std::string& typed, Range<T> range, std::string_view kind) {
  T value{};
  const char* end = typed.data() + typed.size();
  const auto [stop, error] = std::from_chars(typed.data(), end, value);
  const bool in_range = value >= range.from && value <= range.to;  // false for NaN
  if (std::is_integral_v<T> && error == std::errc::result_out_of_range) {
    app::refuse("{}: expected {} from {} to {}, got '{}'", label, kind, range.from, range.to, typed);
  }
  if (error != std::errc() || stop != end || !in_range) {
    app::refuse("{}: expected {}, got '{}'", label, describe(range, kind), typed);
  }
  return value;
}

template <class T>
json json_of(const T& value) {
  return value;
}
template <class T>
json json_of(const std::optional<T>& value) {
  return value ? json(*value) : json();
}
json json_of(const app::ChosenRecipe& value) { return value.text.empty() ? json() : json(value.text); }
json json_of(const app::LossScale& value) { return value.text; }
json json_of(const std::filesystem::path& value) { return value.empty() ? json() : json(value.native()); }

// A field of one value that `parse(label, typed)` makes of the text.
template <class T, class Parse>
Field single(T& target, Parse parse) {
  return {
      .values = Field::Values::kOne,
      .set = [&target, parse](const std::string& label, const Typed& typed) { target = parse(label, typed.back()); },
      .get = [&target] { return json_of(target); }};
}

auto integer_parser(Range<int64_t> range) {
  return [range](const std::string& label, const std::string& typed) {
    return parse_number(label, typed, range, "an integer");
  };
}

auto number_parser(Range<double> range) {
  return [range](const std::string& label, const std::string& typed) {
    return parse_number(label, typed, range, "a number");
  };
}

size_t expect_one_of(std::span<const std::string_view> names, const std::string& label, const std::string& typed) {
  const auto found = std::find(names.begin(), names.end(), typed);
  if (found == names.end()) app::refuse("{}", recipe::unknown_name(label, typed, names));
  return static_cast<size_t>(found - names.begin());
}

app::ChosenRecipe parse_recipe(const std::string& label, const std::string& typed) {
  if (!typed.starts_with('{')) expect_one_of(recipe::names(), label, typed);
  try {
    return app::parse_recipe(typed);
  } catch (const app::UsageError& error) {
    app::refuse("{}: {}", label, error.what());
  }
}

app::ChosenRecipe parse_training_recipe(const std::string& label, const std::string& typed) {
  if (!recipe::is_automatic(typed)) {
    std::vector<std::string_view> known = recipe::names();
    known.push_back("auto");
    if (!typed.starts_with('{')) expect_one_of(known, label, typed);
    return parse_recipe(label, typed);
  }
  try {
    return app::parse_training_recipe(typed);
  } catch (const app::UsageError& error) {
    app::refuse("{}: {}", label, error.what());
  }
}

// Commas inside the braces of a JSON recipe do not separate.
std::vector<std::string> split_at_commas(const std::string& typed) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char letter : typed) {
    depth += (letter == '{') - (letter == '}');
    if (letter == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

std::string as_typed(const std::string&, const std::string& typed) { return typed; }

std::filesystem::path parse_path(const std::string& label, const std::string& typed, PathMust must) {
  std::error_code ignored;
  if (typed.empty()) app::refuse("{}: expected a path, got nothing", label);
  if (must == PathMust::kExist && !std::filesystem::exists(typed, ignored)) {
    app::refuse("{}: expected a file or directory, got '{}', which does not exist", label, typed);
  }
  return typed;
}

// A field of comma-separated values, each as `single`.
template <class T, class Parse>
Field several(std::vector<T>& target, Parse parse) {
  return {.values = Field::Values::kOne,
          .set =
              [&target, parse](const std::string& label, const Typed& typed) {
                target.clear();
                for (const std::string& part : split_at_commas(typed.back())) target.push_back(parse(label, part));
              },
          .get =
              [&target] {
                json list = json::array();
                for (const T& value : target) list.push_back(json_of(value));
                return list;
              }};
}

}  // namespace

Field integer(int64_t& target, Range<int64_t> range) { return single(target, integer_parser(range)); }

Field integer(std::optional<int64_t>& target, Range<int64_t> range) { return single(target, integer_parser(range)); }

Field integers(std::vector<int64_t>& target, Range<int64_t> range) { return several(target, integer_parser(range)); }

Field number(double& target, Range<double> range) { return single(target, number_parser(range)); }

Field number(std::optional<double>& target, Range<double> range) { return single(target, number_parser(range)); }

Field toggle(bool& target) {
  return {.values = Field::Values::kSwitch,
          .set =
              [&target](const std::string& label, const Typed& typed) {
                const bool is_true = typed.empty() || typed.back() == "true";
                if (!is_true && typed.back() != "false")
                  app::refuse("{}: expected true or false, got '{}'", label, typed.back());
                target = is_true;
              },
          .get = [&target] { return json(target); }};
}

Field text(std::string& target) { return single(target, as_typed); }

Field text(std::optional<std::string>& target) { return single(target, as_typed); }

Field texts(std::vector<std::string>& target) {
  return {.values = Field::Values::kMany,
          .set = [&target](const std::string&, const Typed& typed) { target = typed; },
          .get = [&target] { return target.empty() ? json() : json(target); }};
}

Field names(std::vector<std::string>& target) {
  return {.values = Field::Values::kOne,
          .set =
              [&target](const std::string& label, const Typed& typed) {
                std::vector<std::string> parts = split_at_commas(typed.back());
                if (std::ranges::any_of(parts, &std::string::empty)) {
                  app::refuse("{}: expected names, got '{}'", label, typed.back());
                }
                target = std::move(parts);
              },
          .get = [&target] { return target.empty() ? json() : json(target); }};
}

Field choice(std::vector<std::string_view> names, std::function<void(size_t)> set, std::function<json()> get) {
  return {.values = Field::Values::kOne,
          .set = [names = std::move(names), set = std::move(set)](
                     const std::string& label, const Typed& typed) { set(expect_one_of(names, label, typed.back())); },
          .get = std::move(get)};
}

Field choices(std::vector<std::string_view> names, std::function<void(const std::vector<size_t>&)> set,
              std::function<json()> get) {
  return {.values = Field::Values::kOne,
          .set =
              [names = std::move(names), set = std::move(set)](const std::string& label, const Typed& typed) {
                std::vector<size_t> rows;
                for (const std::string& part : split_at_commas(typed.back()))
                  rows.push_back(expect_one_of(names, label, part));
                set(rows);
              },
          .get = std::move(get)};
}

Field recipe(app::ChosenRecipe& target) { return single(target, parse_recipe); }

Field training_recipe(app::ChosenRecipe& target) { return single(target, parse_training_recipe); }

std::string training_recipe_help() {
  return fmt::format("who picks the scales: {}, auto, or a JSON object", fmt::join(recipe::names(), ", "));
}

Field recipes(std::vector<app::ChosenRecipe>& target) { return several(target, parse_training_recipe); }

Field finish_in(std::optional<app::FinishIn>& target) {
  return {.values = Field::Values::kMany,
          .set =
              [&target](const std::string& label, const Typed& typed) {
                if (typed.size() != 2)
                  app::refuse("{}: expected a recipe and a share, got {}", label,
                              typed.empty() ? "none" : fmt::format("{}", fmt::join(typed, " ")));
                constexpr Range<double> kShare{.from = 1e-9, .to = 1};
                target = app::FinishIn{.recipe = parse_recipe(label, typed.front()),
                                       .share = parse_number(label, typed.back(), kShare, "a share")};
              },
          .get =
              [&target] {
                return target ? json{target->recipe.text, target->share} : json();
              }};
}

Field loss_scale(app::LossScale& target) {
  return single(target, [](const std::string&, const std::string& typed) { return app::parse_loss_scale(typed); });
}

Field noted(Field field, std::vector<std::string>& typed) {
  field.set = [set = std::move(field.set), &typed](const std::string& label, const Typed& values) {
    set(label, values);
    typed.push_back(label);
  };
  return field;
}

Field path(std::filesystem::path& target, PathMust must) {
  return single(target,
                [must](const std::string& label, const std::string& typed) { return parse_path(label, typed, must); });
}

Field optional_path(std::optional<std::filesystem::path>& target) {
  return {.values = Field::Values::kOptional,
          .set =
              [&target](const std::string&, const Typed& typed) {
                target.reset();
                if (typed.empty() || typed.back() == "true") {
                  target.emplace();
                } else if (typed.back() != "false") {
                  target.emplace(typed.back());
                }
              },
          .get =
              [&target] {
                if (!target) return json();
                return target->empty() ? json(true) : json(target->native());
              }};
}

Field existing_paths(std::vector<std::filesystem::path>& target) {
  return {.values = Field::Values::kMany,
          .set =
              [&target](const std::string& label, const Typed& typed) {
                target.clear();
                for (const std::string& one : typed) target.push_back(parse_path(label, one, PathMust::kExist));
              },
          .get =
              [&target] {
                json list = json::array();
                for (const auto& one : target) list.push_back(one.native());
                return list.empty() ? json() : list;
              }};
}

}  // namespace plimsoll::cli
