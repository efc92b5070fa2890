// The scale of one block from its amax.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "plimsoll/format/e8m0.h"

namespace plimsoll::kernels {

// FP32: max(amax / max_finite, FLT_MIN), or the power of two at or above it; NaN where the block holds NaN or Inf.
inline float fp32_block_scale(float amax, float max_finite, bool power_of_two) {
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  const float exact =
      power_of_two ? format::E8m0::decode(format::E8m0::from_amax(amax, max_finite)) : amax / max_finite;
  return std::max(exact, FLT_MIN);
}

}  // namespace plimsoll::kernels
