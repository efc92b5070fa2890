// The plan of `plimsoll line`: products that never have codes, as a member of config.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace plimsoll::models {

// Member with the plan, and in it the names of the products that never have codes.
inline constexpr const char *kPlanMember = "plimsoll_plan", *kHighPrecisionMember = "high_precision";

// The names in the plan; none without one. name: of the file, opens errors. Throws io::Error for a plan of another kind.
std::vector<std::string> read_plan(const nlohmann::json& config, const std::string& name);

}  // namespace plimsoll::models
