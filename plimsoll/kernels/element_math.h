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
PLIMSOLL_HD inline float exp2_in_range_of(float x) {  // of x from -127 to 127
  const float shifted = x + (12582912.0f + 127.0f), r = x - (shifted - (12582912.0f + 127.0f));
  float p = 0.0013264727f;
  p = fmaf(p, r, 0.009671513f);
  p = fmaf(p, r, 0.055507336f);
  p = fmaf(p, r, 0.24022242f);
  p = fmaf(p, r, 0.693147f);
  p = fmaf(p, r, 1.0f);
  return p * format::bit_cast<float>(format::bit_cast<uint32_t>(shifted) << 23);
}
PLIMSOLL_HD inline float exp2_bounded_of(float x) { return exp2_in_range_of(larger_of(-127.0f, x)); }

PLIMSOLL_HD inline float log_of(float x) {
  const uint32_t bits = format::bit_cast<uint32_t>(x);
  const int32_t exponent = static_cast<int32_t>((bits - 0x3f3504f3u + 0x3f800000u) >> 23) - 127;
  const float n = static_cast<float>(exponent);
  const float r = format::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  float p = 7.0376836292e-2f;
  p = fmaf(p, r, -1.1514610310e-1f);
  p = fmaf(p, r, 1.1676998740e-1f);
  p = fmaf(p, r, -1.2420140846e-1f);
  p = fmaf(p, r, 1.4249322787e-1f);
  p = fmaf(p, r, -1.6668057665e-1f);
  p = fmaf(p, r, 2.0000714765e-1f);
  p = fmaf(p, r, -2.4999993993e-1f);
  p = fmaf(p, r, 3.3333331174e-1f);
  const float square = r * r, tail = (p * r * square + n * -2.12194440e-4f) - 0.5f * square;
  const float result = (r + tail) + n * 0.693359375f;
  return x < __builtin_inff() ? result : x;
}

// 1 + exp_clamped_of(-x): the product is exact, or lost beside 1. A bound of x itself is one instruction on a card.
PLIMSOLL_HD inline float one_plus_exp_of_minus(float x) {
  const ScaledPower e = exp_parts_of(-smaller_of(88.0f, larger_of(-88.8f, x)));
  return fmaf(e.p, e.power, 1.0f);
}

}  // namespace plimsoll::kernels
