// Elementary functions of simd/math.h on one number, with their bits, for hosts and CUDA devices. There their errors and
// coefficients are explained.
#pragma once

#include <cmath>
#include <cstdint>

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// min and max of simd/vector.h: b where either is NaN.
PLIMSOLL_HD inline float smaller_of(float a, float b) { return a < b ? a : b; }
PLIMSOLL_HD inline float larger_of(float a, float b) { return a > b ? a : b; }

// x between -limit and limit; NaN stays NaN.
PLIMSOLL_HD inline float clamped_to(float limit, float x) { return larger_of(-limit, smaller_of(limit, x)); }

// e^r * 2^n, n = shifted - shift being an integer.
struct ReducedExponent {
  float r, shifted;
};
PLIMSOLL_HD inline ReducedExponent reduce_exponent_of(float x, float shift) {
  const float shifted = fmaf(x, 1.44269504f, shift), n = shifted - shift;
  return {fmaf(-n, -2.12194440e-4f, fmaf(-n, 0.693359375f, x)), shifted};
}

PLIMSOLL_HD inline float exp_of(float x) {
  const auto [r, shifted] = reduce_exponent_of(x, 12582912.0f);
  float p = 0.0013820411f;
  p = fmaf(p, r, 0.008368677f);
  p = fmaf(p, r, 0.04166827f);
  p = fmaf(p, r, 0.16666521f);
  p = fmaf(p, r, 0.49999994f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  const float power =
      format::bit_cast<float>(format::bit_cast<uint32_t>(p) + (format::bit_cast<uint32_t>(shifted) << 23));
  const float result = x < -87.33f ? 0.0f : power;
  return x <= 88.722839f ? result : x + __builtin_inff();
}

// p 2^n, as p and 2^n.
struct ScaledPower {
  float p, power;
};
PLIMSOLL_HD inline ScaledPower exp_parts_of(float x) {  // of x from -88 to 88.8
  const auto [r, shifted] = reduce_exponent_of(x, 12582912.0f + 127);
  float p = 0.008289633f;
  p = fmaf(p, r, 0.041898176f);
  p = fmaf(p, r, 0.16667649f);
  p = fmaf(p, r, 0.49999148f);
  p = fmaf(p, r, 0.9999997f);
  p = fmaf(p, r, 1.0f);
  return {p, format::bit_cast<float>(format::bit_cast<uint32_t>(shifted) << 23)};
}
PLIMSOLL_HD inline float exp_in_range_of(float x) {  // likewise
  const ScaledPower e = exp_parts_of(x);
  return e.p * e.power;
}
PLIMSOLL_HD inline float exp_clamped_of(float x) { return exp_in_range_of(larger_of(-88.0f, smaller_of(88.8f, x))); }
// 1 + exp_clamped_of(-x): the product is exact, or lost beside 1. A bound of x itself is one instruction on a card.
PLIMSOLL_HD inline float one_plus_exp_of_minus(float x) {
  const ScaledPower e = exp_parts_of(-smaller_of(88.0f, larger_of(-88.8f, x)));
  return fmaf(e.p, e.power, 1.0f);
}

}  // namespace plimsoll::kernels
