// The scale of one block from its amax.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/kernels/quantize/quantize.h"

namespace plimsoll::kernels {

struct BlockScale {
  float scale;      // NaN where the block holds NaN or Inf
  float inv_scale;  // what x is multiplied with
};

// FP32: scale = max(amax / max_finite, FLT_MIN), or the power of two at or above it.
inline BlockScale fp32_block_scale(float amax, float max_finite, bool power_of_two) {
  if (!std::isfinite(amax)) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  const float exact =
      power_of_two ? format::E8m0::decode(format::E8m0::from_amax(amax, max_finite)) : amax / max_finite;
  const float scale = std::max(exact, FLT_MIN);
  return {scale, 1.0f / scale};
}

}  // namespace plimsoll::kernels
