// Quotients of an activation without a branch for each: the steps in which nvcc divides, whose own test of each quotient is here one of
// many together.
#pragma once

#include "plimsoll/kernels/activation/activation_element.h"

namespace plimsoll::kernels {

// With y the card's reciprocal, refined once, and q = x y: q + (x - d q) y, each sum fused. nvcc makes the same operations of x / d and
// of 1 / d where nothing underflows or overflows, and scaling x and d by powers of two scales each of them. Here x - d q must be exact:
// a multiple of 2^-23 of q's and d's exponents, it is not below 2^-149 where 2^-90 <= |x / d|, 1 <= d <= 2^100.
//
// A quotient is open, may be wrong, where that is not known. |x / d| tells it of d too: where 2^100 < d < Inf every curve has
// |x| < 2^7 (the clamped one |x| < 2^27, for which its alpha answers, and d <= 2^125 or |x / d| < 2^-98), and an infinite d gives NaN.
class FastDivision {
 public:
  // A curve divides as above unless its parameters are far from any use.
  __device__ static bool is_for(const ActivationCurve& c) {
    return c.curve != Curve::kClampedSilu || fabsf(c.alpha) >= 0x1p-20f;
  }

  __device__ float quotient(float x, float d) {
    const float y = refined_reciprocal(d), q = x * y;
    const float result = fmaf(-fmaf(d, q, -x), y, q);  // keeps the sign of 0
    quotient_is_open_ |= !(fabsf(result) >= 0x1p-90f);
    return result;
  }
  __device__ float reciprocal(float d) {
    reciprocal_is_open_ |= !(d <= 0x1p100f);
    return refined_reciprocal(d);
  }

  __device__ bool quotient_is_open() const { return quotient_is_open_; }
  __device__ bool reciprocal_is_open() const { return reciprocal_is_open_; }

 private:
  __device__ static float refined_reciprocal(float d) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    return fmaf(y, fmaf(-d, y, 1.0f), y);
  }

  bool quotient_is_open_ = false, reciprocal_is_open_ = false;
};

// The larger of amax and |x|; NaN if either is NaN.
__device__ inline float larger_magnitude(float amax, float x) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(amax), "f"(fabsf(x)));
  return result;
}

}  // namespace plimsoll::kernels
