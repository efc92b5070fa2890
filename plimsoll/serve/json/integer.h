// Integers among JSON's numbers.
#pragma once

#include <cmath>

namespace plimsoll::serve {

// Whether JSON counts a value of nlohmann's among the integers: 3.0 is one.
template <class Json>
bool is_integer(const Json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const auto number = value.template get<double>();
  return std::trunc(number) == number;
}

}  // namespace plimsoll::serve
