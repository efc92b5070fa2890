// Value of one element, for hosts and CUDA devices.
#pragma once

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// decoded * scale, once rounded, and one NaN for all.
PLIMSOLL_HD inline float dequantized(float decoded, float scale) {
  const float value = decoded * scale;
  return value == value ? value : format::bit_cast<float>(0x7fc00000u);
}

}  // namespace plimsoll::kernels
