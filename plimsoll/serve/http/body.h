// The fields of a request's body. Each getter takes a field out, with null as if it were not there; a field of another
// type or out of range is an ApiError that names it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::serve {

// The type of a value as an error has it.
std::string type_of(const nlohmann::json& value);

// The value of an integer (json/integer.h); none: beyond int64.
std::optional<int64_t> integer_of(const nlohmann::json& value);

class Body {
 public:
  // text: JSON, an object. prefix: of the names of fields in errors.
  explicit Body(std::string_view text);
  Body(nlohmann::json object, std::string prefix);

  std::optional<bool> flag(const char* name);
  std::optional<int64_t> integer(const char* name, int64_t from, int64_t to);
  std::optional<double> number(const char* name, double from, double to);
  std::optional<std::string> text(const char* name);
  nlohmann::json take(const char* name);  // null if it is not there
  // Fields that may stand there empty, as arrays or objects, for they ask for nothing then.
  void take_empty(std::initializer_list<const char*> names);
  // An error if a field has not been taken: it is unknown. One that is null asks for nothing.
  void expect_no_more() const;

  std::string name_of(const char* name) const { return prefix_ + name; }

 private:
  nlohmann::json object_;
  std::string prefix_;
};

}  // namespace plimsoll::serve
