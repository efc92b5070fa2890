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

// 2^x to 3 ulp, at two thirds of the cost of exp: no meaning above 127, but NaN and +Inf give NaN. Exactly 1 at 0; 0
// below -126.5.
PLIMSOLL_INLINE F32x16 exp2_bounded(F32x16 x) {
  // As exp; the shift leaves n + 127 in the low bits, the exponent of 2^n, and 0 at n = -127 stands for the value 0.
  const F32x16 shift = set(12582912.0f + 127.0f);
  const F32x16 bounded = max(set(-127.0f), x);
  const F32x16 shifted = add(bounded, shift);
  const F32x16 r = sub(bounded, sub(shifted, shift));
  // Fitted for the least relative error, 2^-23.4.
  F32x16 p = set(0.0013264727f);
  p = add(mul(p, r), set(0.009671513f));
  p = add(mul(p, r), set(0.055507336f));
  p = add(mul(p, r), set(0.24022242f));
  p = add(mul(p, r), set(0.693147f));
  p = add(mul(p, r), set(1.0f));
  return mul(p, from_bits(shift_left<23>(bits(shifted))));
}

// ln x to 2 ulp for normal x > 0; Inf and NaN stay. Source: logf of Moshier's Cephes library.
PLIMSOLL_INLINE F32x16 log(F32x16 x) {
  // x = 2^n (1 + r), sqrt(1/2) <= 1 + r < sqrt(2).
  const I32x16 above = sub_i(bits(x), set_i(0x3f3504f3));
  const I32x16 exponent = sub_i(shift_right<23>(add_i(above, set_i(0x3f800000))), set_i(127));
  const F32x16 n = to_float(exponent);
  const F32x16 r = sub(from_bits(sub_i(bits(x), shift_left<23>(exponent))), set(1.0f));
  F32x16 p = set(7.0376836292e-2f);
  p = add(mul(p, r), set(-1.1514610310e-1f));
  p = add(mul(p, r), set(1.1676998740e-1f));
  p = add(mul(p, r), set(-1.2420140846e-1f));
  p = add(mul(p, r), set(1.4249322787e-1f));
  p = add(mul(p, r), set(-1.6668057665e-1f));
  p = add(mul(p, r), set(2.0000714765e-1f));
  p = add(mul(p, r), set(-2.4999993993e-1f));
  p = add(mul(p, r), set(3.3333331174e-1f));
  const F32x16 square = mul(r, r);
  F32x16 tail = add(mul(mul(p, r), square), mul(n, set(-2.12194440e-4f)));
  tail = sub(tail, mul(set(0.5f), square));
  const F32x16 result = add(add(r, tail), mul(n, set(0.693359375f)));
  return select(less(x, set(__builtin_inff())), result, x);
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
