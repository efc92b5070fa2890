// The fields of one JSON object of a file, each read with its type. Errors name the file, the field's place in it, what
// was expected and what is there.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

class Fields {
 public:
  // `name`: the file and the object's place in it.
  Fields(const nlohmann::json& object, std::string name);

  const std::string& name() const { return name_; }
  std::string name_of(std::string_view key) const;
  // The value of `key`; null if it is absent.
  const nlohmann::json& at(std::string_view key) const;

  std::string text(std::string_view key) const;
  std::optional<std::string> text_or_none(std::string_view key) const;
  bool flag(std::string_view key) const;
  bool flag(std::string_view key, bool absent) const;
  // An integer in [0, limit).
  int64_t integer(std::string_view key, int64_t limit) const;
  // A text of one character.
  char32_t character(std::string_view key) const;
  Fields object(std::string_view key) const;

  // Calls visit(element, its name) for each element of an array.
  using Visit = std::function<void(const nlohmann::json&, const std::string&)>;
  void for_each(std::string_view key, const Visit& visit) const;

  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  const nlohmann::json* object_;
  std::string name_;
};

// A value for an error: its beginning, on one line.
std::string shown(const nlohmann::json& value);

// Calls visit for each step that a component stands for: itself, or those of a Sequence, whose list is called
// `list_key`; none for null. Throws Error for more than 64.
void for_each_step(const nlohmann::json& component, const std::string& name, std::string_view list_key,
                   const std::function<void(const Fields&, const std::string& type)>& visit);

}  // namespace plimsoll::tokenize
