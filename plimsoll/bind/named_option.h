// Options of operators that users choose by name.
#pragma once

#include <c10/util/Exception.h>

#include <stdexcept>
#include <string_view>

#include "plimsoll/recipe/named.h"

namespace plimsoll::bind {

// The value that the table (recipe::Named) has under this name; any other name is Python's ValueError.
template <class Table>
auto named_option(const Table& table, std::string_view option, std::string_view name) {
  try {
    return recipe::value_of(table, option, name);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace plimsoll::bind
