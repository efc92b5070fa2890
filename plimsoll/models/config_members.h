// Members of a config.json by name and type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace plimsoll::models {

// One object of a file, with a default for each member that is absent or null. A member of another type is an io::Error
// that names the file and the member. The object outlives the reader.
class ConfigMembers {
 public:
  // name: of the file, opens errors.
  ConfigMembers(const nlohmann::json& object, std::string name) : object_(object), name_(std::move(name)) {}

  bool has(const std::string& member) const;
  // Whether it is there, be it null: transformers takes a null for none, and its own default for what is absent.
  bool contains(const std::string& member) const { return object_.contains(member); }
  int64_t integer(const std::string& member, int64_t otherwise) const;
  double number(const std::string& member, double otherwise) const;
  bool flag(const std::string& member, bool otherwise) const;
  std::string text(const std::string& member, const std::string& otherwise) const;
  // Throws io::Error without it.
  int64_t needed_integer(const std::string& member) const;
  double needed_number(const std::string& member) const;
  // The value of a member that is there.
  const nlohmann::json& at(const std::string& member) const { return object_.at(member); }
  const std::string& name() const { return name_; }

 private:
  void check_given(const std::string& member) const;

  const nlohmann::json& object_;
  std::string name_;
};

}  // namespace plimsoll::models
