// Arithmetic of a norm on one element and one row, for hosts and CUDA devices.
#pragma once

#include <cmath>

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// A variance that overflows (values beyond 1e19) gives NaN, which is seen, instead of a row of zeros. Each file has its own
// copy, because files are compiled for different instruction sets.
[[gnu::always_inline]] PLIMSOLL_HD static inline float rstd_of_variance(float variance, float epsilon) {
  return 1.0f / sqrtf(variance + epsilon) + (variance - variance);
}

PLIMSOLL_HD inline float gain_of(float weight, bool zero_centered) { return zero_centered ? weight + 1.0f : weight; }

PLIMSOLL_HD inline float normal_of(float x, float mean, float rstd) { return (x - mean) * rstd; }
PLIMSOLL_HD inline float normalized(float x, float mean, float rstd, float gain) {
  return normal_of(x, mean, rstd) * gain;
}
PLIMSOLL_HD inline float normalized(float x, float mean, float rstd, float gain, float bias) {
  return fmaf(normal_of(x, mean, rstd), gain, bias);
}

// Gradient of x: rstd * (g - mean(g) - normal * mean(g * normal)), g = dy * gain. RMSNorm has no mean(g).
struct NormGradient {
  float rstd, shift, slope;

  PLIMSOLL_HD NormGradient(float factor, float mean_g, float mean_gn)
      : rstd(factor), shift(factor * mean_g), slope(factor * mean_gn) {}
  PLIMSOLL_HD float operator()(float g, float normal) const {
    return fmaf(g, rstd, fmaf(-normal, slope, 0.0f - shift));
  }
};

}  // namespace plimsoll::kernels
