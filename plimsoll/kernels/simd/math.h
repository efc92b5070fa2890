// Elementary functions on 16 lanes, from additions, multiplications and one division, so that every ISA gives the same
// bits. Errors are against double, over all finite arguments; simd_test measures them.
#pragma once

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// e^x to 2 ulp. Inf above 88.72; 0 below -87.33, where results would be subnormal, which is slow; NaN stays NaN.
PLIMSOLL_INLINE F32x16 exp(F32x16 x) {
  // e^x = 2^n e^r, |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to n and leaves it in the low bits; ln(2) is in two
  // parts, the first short enough for n * part to be exact (Cody and Waite).
  const F32x16 shift = set(12582912.0f);
  const F32x16 shifted = add(mul(x, set(1.44269504f)), shift);
  const F32x16 n = sub(shifted, shift);
  F32x16 r = sub(x, mul(n, set(0.693359375f)));
  r = sub(r, mul(n, set(-2.12194440e-4f)));
  // 1 + r + r^2 q(r), q fitted for the least relative error, 2^-28.
  F32x16 q = set(0.00138145394f);
  q = add(mul(q, r), set(0.00836874545f));
  q = add(mul(q, r), set(0.041668389f));
  q = add(mul(q, r), set(0.166665211f));
  q = add(mul(q, r), set(0.49999994f));
  const F32x16 p = add(add(mul(mul(q, r), r), r), set(1.0f));
  F32x16 result = from_bits(add_i(bits(p), shift_left<23>(bits(shifted))));
  result = select(less(x, set(-87.33f)), zero(), result);
  return select(less_equal(x, set(88.722839f)), result, add(x, set(__builtin_inff())));
}

// 1 / (1 + e^-x).
PLIMSOLL_INLINE F32x16 sigmoid(F32x16 x) { return div(set(1.0f), add(set(1.0f), exp(sub(zero(), x)))); }

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
