#include "plimsoll/app/train/changed_options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "plimsoll/io/error.h"

namespace plimsoll::app {
namespace {

bool changes_nothing(std::string_view option) {
  constexpr std::array<std::string_view, 24> kOptions = {"async-save", "audit",      "checkpoint-activations",
                                                         "config",     "config-of",  "data",
                                                         "deadline",   "eval-every", "json",
                                                         "keep",       "log-every",  "log-scales",
                                                         "model",      "offload",    "out",
                                                         "profile",    "recipes",    "resume",
                                                         "samples",    "save-every", "shard",
                                                         "show-data",  "threads",    "watch"};
  return std::ranges::find(kOptions, option) != kOptions.end();
}

}  // namespace

std::vector<std::string> changed_options(const nlohmann::json& before, const nlohmann::json& now) {
  std::vector<std::string> lines;
  if (!before.is_object() || !now.is_object()) return lines;
  for (const auto& [option, value] : now.items()) {
    // One that an older program did not know had the value that it has by itself, which nobody knows here.
    const auto found = before.find(option);
    if (found == before.end() || *found == value || changes_nothing(option)) continue;
    lines.push_back(io::compose("--{} was {}, from here on it is {}", option, found->dump(), value.dump()));
  }
  return lines;
}

}  // namespace plimsoll::app
