#include "plimsoll/cli/lora_field.h"

#include <fmt/ranges.h>

#include <map>

#include "plimsoll/app/error.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::cli {
namespace {

using Typed = std::vector<std::string>;

// Values by name, in each of which a comma separates what follows the first.
std::map<std::string, Typed> parts_of(const std::string& label, const std::string& typed) {
  std::map<std::string, Typed> parts;
  std::string name;
  for (size_t begin = 0; begin <= typed.size();) {
    const size_t end = std::min(typed.find(',', begin), typed.size());
    std::string part = typed.substr(begin, end - begin);
    begin = end + 1;
    if (const size_t equals = part.find('='); equals != std::string::npos) {
      name = part.substr(0, equals);
      if (parts.contains(name)) app::refuse("{}: expected {} once, got it twice", label, name);
      part = part.substr(equals + 1);
    }
    if (name.empty() || part.empty()) app::refuse("{}: expected NAME=VALUE,..., got '{}'", label, typed);
    parts[name].push_back(part);
  }
  return parts;
}

std::string text_of(const models::LoraOptions& options) {
  return fmt::format("r={},alpha={},targets={},dropout={}", options.adapters.rank, options.adapters.alpha,
                     fmt::join(options.targets, ","), options.adapters.dropout);
}

models::LoraOptions parse(const std::string& label, const std::string& typed, models::LoraOptions options) {
  nn::LoraOptions& adapters = options.adapters;
  std::map<std::string, Typed> parts = parts_of(label, typed);
  const std::vector<std::pair<std::string_view, Field>> fields = {
      {"r", integer(adapters.rank, {.from = 1, .to = int64_t{1} << 16})},
      {"alpha", number(adapters.alpha, {.from = 1e-6, .to = 1e6})},
      {"targets", texts(options.targets)},
      {"dropout", number(adapters.dropout, {.from = 0, .to = 0.99})}};
  std::vector<std::string_view> names;
  for (const auto& [name, field] : fields) names.push_back(name);
  for (const auto& [name, values] : parts) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) app::refuse("{}", recipe::unknown_name(label, name, names));
    if (name != "targets" && values.size() > 1) {
      app::refuse("{}: expected one {}, got {}", label, name, fmt::format("{}", fmt::join(values, ",")));
    }
    fields[static_cast<size_t>(found - names.begin())].second.set(label + " " + name, values);
    if (name == "r" && !parts.contains("alpha")) adapters.alpha = 2 * static_cast<double>(adapters.rank);
  }
  return options;
}

}  // namespace

Field lora(std::optional<models::LoraOptions>& target, const models::LoraOptions& usual) {
  return {.values = Field::Values::kOptional,
          .set =
              [&target, usual](const std::string& label, const Typed& typed) {
                if (typed.empty() || typed.back().empty() || typed.back() == "true") {
                  target = usual;
                } else if (typed.back() == "false") {
                  target.reset();
                } else {
                  target = parse(label, typed.back(), usual);
                }
              },
          .get = [&target] { return target ? nlohmann::json(text_of(*target)) : nlohmann::json(); }};
}

}  // namespace plimsoll::cli
