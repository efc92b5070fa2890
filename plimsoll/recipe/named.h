// Tables of what users choose by name.
#pragma once

#include <stdexcept>
#include <string_view>
#include <vector>

#include "plimsoll/recipe/names.h"

namespace plimsoll::recipe {

// A value under the name that users type for it. A table of them is any range.
template <class T>
struct Named {
  std::string_view name;
  T value;
};

template <class Table>
std::vector<std::string_view> names_of(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

// The name of a value that the table has.
template <class Table, class T>
std::string_view name_of(const Table& table, const T& value) {
  for (const auto& row : table) {
    if (row.value == value) return row.name;
  }
  throw std::logic_error("name_of: expected a value of the table, got another");
}

// Throws std::invalid_argument, unknown_name().
template <class Table>
auto value_of(const Table& table, std::string_view kind, std::string_view name) {
  for (const auto& row : table) {
    if (row.name == name) return row.value;
  }
  throw std::invalid_argument(unknown_name(kind, name, names_of(table)));
}

}  // namespace plimsoll::recipe
