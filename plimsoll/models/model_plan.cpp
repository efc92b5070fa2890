#include "plimsoll/models/model_plan.h"

#include <algorithm>

#include "plimsoll/io/error.h"

namespace plimsoll::models {

using nlohmann::json;

std::vector<std::string> read_plan(const json& config, const std::string& name) {
  const auto plan = config.find(kPlanMember);
  if (plan == config.end() || plan->is_null()) return {};
  if (!plan->is_object()) io::fail("{}: {}: expected an object, got {}", name, kPlanMember, plan->dump());
  const json names = plan->value(kHighPrecisionMember, json::array());
  const bool are_texts =
      names.is_array() && std::ranges::all_of(names, [](const json& each) { return each.is_string(); });
  if (!are_texts) {
    io::fail("{}: {}.{}: expected an array of names, got {}", name, kPlanMember, kHighPrecisionMember, names.dump());
  }
  return names.get<std::vector<std::string>>();
}

}  // namespace plimsoll::models
