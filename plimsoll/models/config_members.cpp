#include "plimsoll/models/config_members.h"

#include "plimsoll/io/error.h"

namespace plimsoll::models {

bool ConfigMembers::has(const std::string& member) const {
  return object_.contains(member) && !object_.at(member).is_null();
}

int64_t ConfigMembers::integer(const std::string& member, int64_t otherwise) const {
  if (!has(member)) return otherwise;
  const nlohmann::json& value = at(member);
  if (!value.is_number_integer()) io::fail("{}: {}: expected an integer, got {}", name_, member, value.dump());
  return value.get<int64_t>();
}

double ConfigMembers::number(const std::string& member, double otherwise) const {
  if (!has(member)) return otherwise;
  const nlohmann::json& value = at(member);
  if (!value.is_number()) io::fail("{}: {}: expected a number, got {}", name_, member, value.dump());
  return value.get<double>();
}

bool ConfigMembers::flag(const std::string& member, bool otherwise) const {
  if (!has(member)) return otherwise;
  const nlohmann::json& value = at(member);
  if (!value.is_boolean()) io::fail("{}: {}: expected true or false, got {}", name_, member, value.dump());
  return value.get<bool>();
}

std::string ConfigMembers::text(const std::string& member, const std::string& otherwise) const {
  if (!has(member)) return otherwise;
  const nlohmann::json& value = at(member);
  if (!value.is_string()) io::fail("{}: {}: expected a string, got {}", name_, member, value.dump());
  return value.get<std::string>();
}

int64_t ConfigMembers::needed_integer(const std::string& member) const {
  check_given(member);
  return integer(member, 0);
}

double ConfigMembers::needed_number(const std::string& member) const {
  check_given(member);
  return number(member, 0);
}

void ConfigMembers::check_given(const std::string& member) const {
  if (!has(member)) io::fail("{}: expected a member '{}', got none", name_, member);
}

}  // namespace plimsoll::models
