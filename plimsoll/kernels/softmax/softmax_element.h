// Arithmetic of a softmax on one element, for hosts and CUDA devices.
#pragma once

#include <cmath>
#include <cstdint>

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// exp_clamped of simd/math.h on one number, with its bits: there its error and its coefficients are explained.
PLIMSOLL_HD inline float exp_clamped_of(float x) {
  x = 88.8f < x ? 88.8f : x;
  x = -88.0f > x ? -88.0f : x;
  const float shift = 12582912.0f + 127;
  const float shifted = fmaf(x, 1.44269504f, shift), n = shifted - shift;
  const float r = fmaf(-n, -2.12194440e-4f, fmaf(-n, 0.693359375f, x));
  float p = 0.008289633f;
  p = fmaf(p, r, 0.041898176f);
  p = fmaf(p, r, 0.16667649f);
  p = fmaf(p, r, 0.49999148f);
  p = fmaf(p, r, 0.9999997f);
  p = fmaf(p, r, 1.0f);
  return p * format::bit_cast<float>(format::bit_cast<uint32_t>(shifted) << 23);
}

// The larger; NaN is passed over.
PLIMSOLL_HD inline float larger_logit(float x, float top) { return x > top ? x : top; }

}  // namespace plimsoll::kernels
