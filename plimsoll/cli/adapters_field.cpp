#include "plimsoll/cli/adapters_field.h"

#include <algorithm>

#include "plimsoll/app/error.h"

namespace plimsoll::cli {
namespace {

namespace fs = std::filesystem;

// A directory may have the sign in its name: what exists as it was typed is a directory.
NamedAdapter parse_adapter(const std::string& label, const std::string& typed) {
  const size_t sign = typed.find('=');
  const bool is_named = sign != std::string::npos && !fs::exists(typed);
  const fs::path directory = is_named ? typed.substr(sign + 1) : typed;
  if (!fs::is_directory(directory)) {
    app::refuse("{}: expected a directory, or NAME=DIR, got '{}'", label, typed);
  }
  const std::string name = is_named ? typed.substr(0, sign) : fs::canonical(directory).filename().native();
  if (name.empty()) app::refuse("{}: expected a name for {}, got none", label, directory.native());
  return {name, directory};
}

}  // namespace

Field adapters(std::vector<NamedAdapter>& target) {
  return {.values = Field::Values::kMany,
          .set =
              [&target](const std::string& label, const std::vector<std::string>& typed) {
                target.clear();
                for (const std::string& each : typed) {
                  NamedAdapter adapter = parse_adapter(label, each);
                  const auto same = std::ranges::find(target, adapter.name, &NamedAdapter::name);
                  if (same != target.end()) {
                    app::refuse("{}: expected names of their own, got '{}' of {} and {}", label, adapter.name,
                                same->directory.native(), adapter.directory.native());
                  }
                  target.push_back(std::move(adapter));
                }
              },
          .get =
              [&target] {
                nlohmann::json list = nlohmann::json::array();
                for (const NamedAdapter& each : target) list.push_back(each.name + "=" + each.directory.native());
                return list.empty() ? nlohmann::json() : list;
              }};
}

}  // namespace plimsoll::cli
