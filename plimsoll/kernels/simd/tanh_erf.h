// tanh, and the exact form of GELU, on 16 lanes: as math.h, for what FP32 in torch computes by tanh and erf.
#pragma once

#include "plimsoll/kernels/simd/math.h"

namespace plimsoll::kernels {
namespace {

// tanh x to 6 units of 2^-24 of the result. NaN stays NaN. Source: the rational function of Eigen's ptanh.
PLIMSOLL_INLINE F32x16 tanh(F32x16 x) {
  const F32x16 bounded = max(set(-7.9f), min(set(7.9f), x)), square = mul(bounded, bounded);
  F32x16 p = set(-2.76076847742355e-16f);
  p = fma(p, square, set(2.00018790482477e-13f));
  p = fma(p, square, set(-8.60467152213735e-11f));
  p = fma(p, square, set(5.12229709037114e-08f));
  p = fma(p, square, set(1.48572235717979e-05f));
  p = fma(p, square, set(6.37261928875436e-04f));
  p = fma(p, square, set(4.89352455891786e-03f));
  F32x16 q = set(1.19825839466702e-06f);
  q = fma(q, square, set(1.18534705686654e-04f));
  q = fma(q, square, set(2.26843463243900e-03f));
  q = fma(q, square, set(4.89352518554385e-03f));
  return div(mul(bounded, p), q);
}

// The share of a normal distribution below x, which is (1 + erf(x / sqrt 2)) / 2, and e^(-x^2 / 2). Error of
// the share: (8 + x^2 / 2) 2^-24 of it, small ones too, for |x| < 13.
struct NormalShare {
  F32x16 below, bell;
};
PLIMSOLL_INLINE NormalShare normal_share(F32x16 x) {
  const F32x16 bell = exp(mul(mul(x, x), set(-0.5f)));
  const F32x16 t = div(set(1.0f), fma(abs(x), set(0.353553391f), set(1.0f)));
  // erfc(z) e^(z^2) / (2 t), z = |x| / sqrt 2, fitted for the least relative error, 2^-24.5, for z < 9.6.
  F32x16 p = set(-0.0294658002f);
  p = fma(p, t, set(0.141951099f));
  p = fma(p, t, set(-0.242900372f));
  p = fma(p, t, set(0.138229251f));
  p = fma(p, t, set(-0.0127555840f));
  p = fma(p, t, set(0.101106115f));
  p = fma(p, t, set(0.121612318f));
  p = fma(p, t, set(0.141179278f));
  p = fma(p, t, set(0.141043693f));
  const F32x16 beyond = mul(mul(bell, t), p);
  return {select(less(x, zero()), beyond, sub(set(1.0f), beyond)), bell};
}

// x times the share of a normal distribution below x. Hendrycks and Gimpel, 2016.
PLIMSOLL_INLINE F32x16 gelu_erf(F32x16 x) { return mul(x, normal_share(x).below); }

// 0 or 1 in FP32 beyond |x| = 16, and clamped there so that 0 * Inf cannot arise.
PLIMSOLL_INLINE F32x16 gelu_erf_gradient(F32x16 x) {
  const F32x16 bounded = max(set(-16.0f), min(set(16.0f), x));
  const NormalShare share = normal_share(bounded);
  return fma(mul(bounded, share.bell), set(0.398942280f), share.below);
}

}  // namespace
}  // namespace plimsoll::kernels
