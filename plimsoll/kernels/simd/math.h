// Elementary functions on 16 lanes, from additions, multiplications and one division, so that every ISA gives the same
// bits. Errors are against double, over all finite arguments; simd_test measures them.
#pragma once

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// e^x to 2 ulp. Overflows to Inf above 88.73, underflows gradually below -87.3; NaN stays NaN.
PLIMSOLL_INLINE F32x16 exp(F32x16 x) {
  // e^x = 2^n e^r, |r| <= ln(2) / 2. ln(2) in two parts, the first short enough for n * part to be exact (Cody and
  // Waite).
  const F32x16 bounded = max(set(-105.0f), min(set(90.0f), x));
  const F32x16 n = round_even(mul(bounded, set(1.44269504f)));
  F32x16 r = sub(bounded, mul(n, set(0.693359375f)));
  r = sub(r, mul(n, set(-2.12194440e-4f)));
  F32x16 p = set(1.0f / 5040.0f);  // Taylor to degree 7: the next term is below 2^-26 for |r| <= 0.35
  p = add(mul(p, r), set(1.0f / 720.0f));
  p = add(mul(p, r), set(1.0f / 120.0f));
  p = add(mul(p, r), set(1.0f / 24.0f));
  p = add(mul(p, r), set(1.0f / 6.0f));
  p = add(mul(p, r), set(0.5f));
  p = add(mul(mul(p, r), r), r);
  p = add(p, set(1.0f));
  // 2^n in two factors, each a normal number, so that the result may be subnormal or overflow.
  const I32x16 exponent = to_int(n);
  const I32x16 first_half = sub_i(shift_right<1>(add_i(exponent, set_i(256))), set_i(128));
  const I32x16 second_half = sub_i(exponent, first_half);
  const F32x16 scale1 = from_bits(shift_left<23>(add_i(first_half, set_i(127))));
  const F32x16 scale2 = from_bits(shift_left<23>(add_i(second_half, set_i(127))));
  return select(equal(x, x), mul(mul(p, scale1), scale2), x);
}

// 1 / (1 + e^-x). Bounded where e^-x no longer changes the sum, because subnormal results of exp take the slow path.
PLIMSOLL_INLINE F32x16 sigmoid(F32x16 x) {
  return div(set(1.0f), add(set(1.0f), exp(max(set(-87.0f), sub(zero(), x)))));
}

PLIMSOLL_INLINE F32x16 relu(F32x16 x) { return select(less(x, zero()), zero(), x); }  // NaN stays NaN
PLIMSOLL_INLINE F32x16 relu_gradient(F32x16 x) {
  const F32x16 step = select(less(zero(), x), set(1.0f), zero());
  return select(equal(x, x), step, x);
}

PLIMSOLL_INLINE F32x16 silu(F32x16 x) { return mul(x, sigmoid(x)); }

// s (1 + x (1 - s)); constant in FP32 beyond |x| = 110, and clamped there so that 0 * Inf cannot arise.
PLIMSOLL_INLINE F32x16 silu_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-110.0f), min(set(110.0f), x));
  const F32x16 s = sigmoid(bounded);
  return mul(s, add(set(1.0f), mul(bounded, sub(set(1.0f), s))));
}

// The tanh form: x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Hendrycks and Gimpel, 2016.
inline constexpr float kGeluLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.0713548163f;   // 2 sqrt(2 / pi) 0.044715

PLIMSOLL_INLINE F32x16 gelu_sigmoid(F32x16 x) {
  return sigmoid(mul(x, add(set(kGeluLinear), mul(set(kGeluCubic), mul(x, x)))));
}
PLIMSOLL_INLINE F32x16 gelu(F32x16 x) { return mul(x, gelu_sigmoid(x)); }

// s (1 + x (1 - s) 2 u'); 0 or 1 in FP32 beyond |x| = 16, and clamped there so that 0 * Inf cannot arise.
PLIMSOLL_INLINE F32x16 gelu_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-16.0f), min(set(16.0f), x));
  const F32x16 s = gelu_sigmoid(bounded);
  const F32x16 slope = add(set(kGeluLinear), mul(set(3.0f * kGeluCubic), mul(bounded, bounded)));
  return mul(s, add(set(1.0f), mul(mul(bounded, sub(set(1.0f), s)), slope)));
}

}  // namespace
}  // namespace plimsoll::kernels
