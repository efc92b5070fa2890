// Where an option's value goes, and what may go there. A field is bound to a variable, whose value at that time is the
// default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

Field integer(int64_t& target, Range<int64_t> range);
Field integer(std::optional<int64_t>& target, Range<int64_t> range);
// Comma-separated.
Field integers(std::vector<int64_t>& target, Range<int64_t> range);
Field number(double& target, Range<double> range);
Field number(std::optional<double>& target, Range<double> range);
Field toggle(bool& target);
Field text(std::string& target);
Field text(std::optional<std::string>& target);
// One of `names`.
Field choice(std::string& target, std::vector<std::string_view> names);
// Comma-separated, each one of `names`.
Field choices(std::vector<std::string>& target, std::vector<std::string_view> names);
// A recipe's name, or its JSON object.
Field recipe(std::string& target);
// Comma-separated, each as above.
Field recipes(std::vector<std::string>& target);

enum class PathMust : uint8_t { kNothing, kExist };
Field path(std::filesystem::path& target, PathMust must = PathMust::kNothing);
// Asked for without a path: set to an empty one.
Field optional_path(std::optional<std::filesystem::path>& target);
Field existing_paths(std::vector<std::filesystem::path>& target);

}  // namespace plimsoll::cli
