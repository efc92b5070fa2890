// Elementary functions on 16 lanes, from additions, multiplications (fused ones too) and one division, so that every
// ISA gives the same bits. Errors are against double, over all finite arguments; functions_test measures them.
#pragma once

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// e^x = 2^n e^r, |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to n and leaves n + kOffset in the low bits of `shifted`;
// ln(2) is in two parts, so that only the last subtraction rounds (Cody and Waite).
struct Reduced {
  F32x16 r;
  I32x16 shifted;
};
template <int kOffset>
PLIMSOLL_INLINE Reduced reduce_exponent(F32x16 x) {
  const F32x16 shift = set(12582912.0f + kOffset);
  const F32x16 shifted = fma(x, set(1.44269504f), shift);
  const F32x16 n = sub(shifted, shift);
  return {fnma(n, set(-2.12194440e-4f), fnma(n, set(0.693359375f), x)), bits(shifted)};
}

// e^x to 2 ulp. Inf above 88.72; 0 below -87.33, where results would be subnormal, which is slow; NaN stays NaN.
PLIMSOLL_LONG F32x16 exp(F32x16 x) {
  const auto [r, shifted] = reduce_exponent<0>(x);
  // Fitted for the least relative error, 2^-28.
  F32x16 p = set(0.0013820411f);
  p = fma(p, r, set(0.008368677f));
  p = fma(p, r, set(0.04166827f));
  p = fma(p, r, set(0.16666521f));
  p = fma(p, r, set(0.49999994f));
  p = fma(p, r, set(1.0f));
  p = fma(p, r, set(1.0f));
  F32x16 result = from_bits(add_i(bits(p), shift_left<23>(shifted)));
  result = select(less(x, set(-87.33f)), zero(), result);
  return select(less_equal(x, set(88.722839f)), result, add(x, set(__builtin_inff())));
}

// e^x within 3 units of 2^-24, at three quarters of the cost of exp. Inf above 88.38, 0 below -87.68, NaN stays NaN.
// Exactly 1 at 0.
PLIMSOLL_LONG F32x16 exp_clamped(F32x16 x) {
  // The shift leaves n + 127 in the low bits, the exponent of 2^n: 0 at n = -127 stands for 0, 255 at n = 128 for Inf.
  const auto [r, shifted] = reduce_exponent<127>(max(set(-88.0f), min(set(88.8f), x)));
  // Fitted for the least relative error, 2^-23.4.
  F32x16 p = set(0.008289633f);
  p = fma(p, r, set(0.041898176f));
  p = fma(p, r, set(0.16667649f));
  p = fma(p, r, set(0.49999148f));
  p = fma(p, r, set(0.9999997f));
  p = fma(p, r, set(1.0f));
  return mul(p, from_bits(shift_left<23>(shifted)));
}

// 2^x to 3 ulp, at two thirds of the cost of exp. No meaning above 127, but NaN and +Inf give NaN. Exactly 1 at 0; 0
// below -126.5.
PLIMSOLL_LONG F32x16 exp2_bounded(F32x16 x) {
  // As exp_clamped.
  const F32x16 shift = set(12582912.0f + 127.0f);
  const F32x16 bounded = max(set(-127.0f), x);
  const F32x16 shifted = add(bounded, shift);
  const F32x16 r = sub(bounded, sub(shifted, shift));
  // Fitted for the least relative error, 2^-23.4.
  F32x16 p = set(0.0013264727f);
  p = fma(p, r, set(0.009671513f));
  p = fma(p, r, set(0.055507336f));
  p = fma(p, r, set(0.24022242f));
  p = fma(p, r, set(0.693147f));
  p = fma(p, r, set(1.0f));
  return mul(p, from_bits(shift_left<23>(bits(shifted))));
}

// ln x to 2 ulp for normal x > 0; Inf and NaN stay. Source: logf of Moshier's Cephes library.
PLIMSOLL_LONG F32x16 log(F32x16 x) {
  // x = 2^n (1 + r), sqrt(1/2) <= 1 + r < sqrt(2).
  const I32x16 above = sub_i(bits(x), set_i(0x3f3504f3));
  const I32x16 exponent = sub_i(shift_right<23>(add_i(above, set_i(0x3f800000))), set_i(127));
  const F32x16 n = to_float(exponent);
  const F32x16 r = sub(from_bits(sub_i(bits(x), shift_left<23>(exponent))), set(1.0f));
  F32x16 p = set(7.0376836292e-2f);
  p = fma(p, r, set(-1.1514610310e-1f));
  p = fma(p, r, set(1.1676998740e-1f));
  p = fma(p, r, set(-1.2420140846e-1f));
  p = fma(p, r, set(1.4249322787e-1f));
  p = fma(p, r, set(-1.6668057665e-1f));
  p = fma(p, r, set(2.0000714765e-1f));
  p = fma(p, r, set(-2.4999993993e-1f));
  p = fma(p, r, set(3.3333331174e-1f));
  const F32x16 square = mul(r, r);
  F32x16 tail = add(mul(mul(p, r), square), mul(n, set(-2.12194440e-4f)));
  tail = sub(tail, mul(set(0.5f), square));
  const F32x16 result = add(add(r, tail), mul(n, set(0.693359375f)));
  return select(less(x, set(__builtin_inff())), result, x);
}

// x / (1 + e^-z).
PLIMSOLL_INLINE F32x16 times_sigmoid(F32x16 x, F32x16 z) { return div(x, add(set(1.0f), exp_clamped(sub(zero(), z)))); }
PLIMSOLL_INLINE F32x16 sigmoid(F32x16 x) { return times_sigmoid(set(1.0f), x); }

PLIMSOLL_INLINE F32x16 relu(F32x16 x) { return select(less(x, zero()), zero(), x); }  // NaN stays NaN
PLIMSOLL_INLINE F32x16 relu_gradient(F32x16 x) {
  const F32x16 step = select(less(zero(), x), set(1.0f), zero());
  return select(equal(x, x), step, x);
}

PLIMSOLL_INLINE F32x16 silu(F32x16 x) { return times_sigmoid(x, x); }

// s (1 + x (1 - s)); constant in FP32 beyond |x| = 110, and clamped there so that 0 * Inf cannot arise.
PLIMSOLL_INLINE F32x16 silu_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-110.0f), min(set(110.0f), x));
  const F32x16 s = sigmoid(bounded);
  return mul(s, fma(bounded, sub(set(1.0f), s), set(1.0f)));
}

// The tanh form: x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Hendrycks and Gimpel, 2016.
inline constexpr float kGeluLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.0713548163f;   // 2 sqrt(2 / pi) 0.044715

PLIMSOLL_INLINE F32x16 gelu_argument(F32x16 x) { return mul(x, fma(mul(x, x), set(kGeluCubic), set(kGeluLinear))); }
PLIMSOLL_INLINE F32x16 gelu(F32x16 x) { return times_sigmoid(x, gelu_argument(x)); }

// s (1 + x (1 - s) 2 u'); 0 or 1 in FP32 beyond |x| = 16, and clamped there so that 0 * Inf cannot arise.
PLIMSOLL_INLINE F32x16 gelu_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-16.0f), min(set(16.0f), x));
  const F32x16 s = sigmoid(gelu_argument(bounded));
  const F32x16 slope = fma(mul(bounded, bounded), set(3.0f * kGeluCubic), set(kGeluLinear));
  return mul(s, fma(mul(bounded, sub(set(1.0f), s)), slope, set(1.0f)));
}

// A function and its gradient from one exponential; the bits of gelu and gelu_gradient, and so on. The gradients'
// clamps lie where exp_clamped is constant.
struct ValueAndSlope {
  F32x16 value, slope;
};
PLIMSOLL_INLINE ValueAndSlope relu_and_gradient(F32x16 x) { return {relu(x), relu_gradient(x)}; }
PLIMSOLL_INLINE ValueAndSlope silu_and_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-110.0f), min(set(110.0f), x));
  const F32x16 denominator = add(set(1.0f), exp_clamped(sub(zero(), bounded)));
  const F32x16 s = div(set(1.0f), denominator);
  return {div(x, denominator), mul(s, fma(bounded, sub(set(1.0f), s), set(1.0f)))};
}
PLIMSOLL_INLINE ValueAndSlope gelu_and_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-16.0f), min(set(16.0f), x));
  const F32x16 denominator = add(set(1.0f), exp_clamped(sub(zero(), gelu_argument(bounded))));
  const F32x16 s = div(set(1.0f), denominator);
  const F32x16 slope = fma(mul(bounded, bounded), set(3.0f * kGeluCubic), set(kGeluLinear));
  return {div(x, denominator), mul(s, fma(mul(bounded, sub(set(1.0f), s)), slope, set(1.0f)))};
}

}  // namespace
}  // namespace plimsoll::kernels
