// Numbers in JSON, which has no infinity and no NaN.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace plimsoll::app {

inline nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

}  // namespace plimsoll::app
