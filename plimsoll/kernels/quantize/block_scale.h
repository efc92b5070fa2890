// The scale of one block from its amax, for hosts and CUDA devices.
#pragma once

#include <cfloat>
#include <cstdint>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// FP32: max(amax / max_finite, FLT_MIN), or the power of two at or above it; NaN where the block holds NaN or Inf.
PLIMSOLL_HD inline float fp32_block_scale(float amax, float max_finite, bool power_of_two) {
  if (!(amax <= FLT_MAX)) return format::bit_cast<float>(0x7fc00000u);
  const float exact =
      power_of_two ? format::E8m0::decode(format::E8m0::from_amax(amax, max_finite)) : amax / max_finite;
  return exact < FLT_MIN ? FLT_MIN : exact;
}

// The scale of a whole tensor from an amax that a device has found, so that no host waits for it.
struct TensorScale {
  const float* amax = nullptr;  // one float
  float* scale = nullptr;       // one float, overwritten
  float max_finite = 448.0f;    // of the codes' format; this is E4M3's
  bool power_of_two = false;
};
PLIMSOLL_HD inline void set_tensor_scale(const TensorScale& args) {
  *args.scale = fp32_block_scale(*args.amax, args.max_finite, args.power_of_two);
}

}  // namespace plimsoll::kernels
