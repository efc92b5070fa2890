// Code of one element, for hosts and CUDA devices.
#pragma once

#include <cstdint>

#include "plimsoll/format/fp8.h"
#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

inline constexpr uint8_t kNanCode = 0x7f;  // of E4M3 and E5M2

// x * inv_scale, once rounded. A NaN is x itself, whose sign the code keeps; a device's own product has one NaN for all.
PLIMSOLL_HD inline float scaled(float x, float inv_scale) {
  const float y = x * inv_scale;
  return x == x ? y : x;
}

template <class Fp8>
struct QuantizeElement {
  float inv_scale;
  PLIMSOLL_HD uint8_t operator()(float x) const { return Fp8::encode(scaled(x, inv_scale)); }
};

}  // namespace plimsoll::kernels
