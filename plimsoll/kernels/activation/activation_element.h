// Activations and their gradients on one element, for hosts and CUDA devices, with the bits of activation_functions.inc and
// simd/math.h, where clamps and formulas are explained.
#pragma once

#include <cfloat>
#include <cmath>

#include "plimsoll/format/host_device.h"
#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/kernels/element_math.h"

namespace plimsoll::kernels {

// Parts of an ActivationSpec that a kernel on a device needs.
struct ActivationCurve {
  Curve curve;
  bool gated;
  float limit, alpha, offset;  // of Curve::kClampedSilu
};
constexpr ActivationCurve activation_curve(const ActivationSpec& activation) {
  const ActivationInfo& row = info(activation.kind);
  return {row.curve, row.gated, activation.parameters[0], activation.parameters[1], activation.parameters[2]};
}

struct ValueAndGradient {
  float value, gradient;
};

// Division as the CPU has it. Every curve has 1 <= d, or NaN.
struct ExactDivision {
  PLIMSOLL_HD float quotient(float x, float d) const { return x / d; }
  PLIMSOLL_HD float reciprocal(float d) const { return 1.0f / d; }
};

template <class Division>
PLIMSOLL_HD inline float times_sigmoid_of(float x, float z, Division& division) {
  return division.quotient(x, one_plus_exp_of_minus(z));
}

PLIMSOLL_HD inline float gelu_argument_of(float x) { return x * fmaf(x * x, 0.0713548163f, 1.5957691216f); }
template <class Division>
PLIMSOLL_HD inline float gelu_of(float x, Division& division) {
  return times_sigmoid_of(x, gelu_argument_of(x), division);
}
template <class Division>
PLIMSOLL_HD inline ValueAndGradient gelu_and_gradient_of(float x, Division& division) {
  const float bounded = clamped_to(16.0f, x);
  const float denominator = one_plus_exp_of_minus(gelu_argument_of(bounded)), s = division.reciprocal(denominator);
  const float slope = fmaf(bounded * bounded, 3.0f * 0.0713548163f, 1.5957691216f);
  return {division.quotient(x, denominator), s * fmaf(bounded * (1.0f - s), slope, 1.0f)};
}

// x or g, and z, of g / (1 + e^-z) where z' = z / g.
template <class Division>
PLIMSOLL_HD inline ValueAndGradient times_sigmoid_and_gradient_of(float x, float z, Division& division) {
  const float denominator = one_plus_exp_of_minus(z), s = division.reciprocal(denominator);
  return {division.quotient(x, denominator), s * fmaf(z, 1.0f - s, 1.0f)};
}

template <class Division>
PLIMSOLL_HD inline float silu_of(float x, Division& division) {
  return times_sigmoid_of(x, x, division);
}
template <class Division>
PLIMSOLL_HD inline ValueAndGradient silu_and_gradient_of(float x, Division& division) {
  return times_sigmoid_and_gradient_of(x, clamped_to(110.0f, x), division);
}

template <class Division>
PLIMSOLL_HD inline float quick_gelu_of(float x, Division& division) {
  return times_sigmoid_of(x, x * 1.702f, division);
}
template <class Division>
PLIMSOLL_HD inline ValueAndGradient quick_gelu_and_gradient_of(float x, Division& division) {
  return times_sigmoid_and_gradient_of(x, clamped_to(64.0f, x) * 1.702f, division);
}

PLIMSOLL_HD inline float relu_of(float x) { return x < 0.0f ? 0.0f : x; }
PLIMSOLL_HD inline ValueAndGradient relu_and_gradient_of(float x) {
  return {relu_of(x), x == x ? (0.0f < x ? 1.0f : 0.0f) : x};
}

PLIMSOLL_HD inline float squared_relu_of(float x) { return relu_of(x) * relu_of(x); }
PLIMSOLL_HD inline ValueAndGradient squared_relu_and_gradient_of(float x) {
  return {squared_relu_of(x), relu_of(x) + relu_of(x)};
}

template <class Division>
PLIMSOLL_HD inline float sigmoid_of(float x, Division& division) {
  return times_sigmoid_of(1.0f, x, division);
}
template <class Division>
PLIMSOLL_HD inline ValueAndGradient sigmoid_and_gradient_of(float x, Division& division) {
  const float e = exp_clamped_of(-x), s = division.reciprocal(1.0f + e);
  return {s, smaller_of(FLT_MAX, e) * s * s};
}

struct NormalShareOf {
  float below, bell;
};
template <class Division>
PLIMSOLL_HD inline NormalShareOf normal_share_of(float x, Division& division) {
  const float bell = exp_of(x * x * -0.5f), t = division.reciprocal(fmaf(fabsf(x), 0.353553391f, 1.0f));
  float p = -0.0294658002f;
  p = fmaf(p, t, 0.141951099f);
  p = fmaf(p, t, -0.242900372f);
  p = fmaf(p, t, 0.138229251f);
  p = fmaf(p, t, -0.0127555840f);
  p = fmaf(p, t, 0.101106115f);
  p = fmaf(p, t, 0.121612318f);
  p = fmaf(p, t, 0.141179278f);
  p = fmaf(p, t, 0.141043693f);
  const float beyond = bell * t * p;
  return {x < 0.0f ? beyond : 1.0f - beyond, bell};
}
template <class Division>
PLIMSOLL_HD inline float gelu_erf_of(float x, Division& division) {
  return x * normal_share_of(x, division).below;
}
template <class Division>
PLIMSOLL_HD inline ValueAndGradient gelu_erf_and_gradient_of(float x, Division& division) {
  const float bounded = clamped_to(16.0f, x);  // beyond, the share is 0 or 1 as at the bounds
  const NormalShareOf share = normal_share_of(bounded, division);
  return {x * share.below, fmaf(bounded * share.bell, 0.398942280f, share.below)};
}

template <class Division>
PLIMSOLL_HD inline float clamped_silu_of(const ActivationCurve& c, float x, Division& division) {
  const float gate = smaller_of(c.limit, x);
  return times_sigmoid_of(gate, gate * c.alpha, division);
}
template <class Division>
PLIMSOLL_HD inline ValueAndGradient clamped_silu_and_gradient_of(const ActivationCurve& c, float x,
                                                                 Division& division) {
  const float gate = smaller_of(c.limit, x);
  const ValueAndGradient both = times_sigmoid_and_gradient_of(gate, clamped_to(110.0f, gate * c.alpha), division);
  return {both.value, c.limit < x ? 0.0f : both.gradient};
}

// Calls body(f) with the function f(x, division) of the curve, so that a body over many elements chooses once.
template <class Body>
PLIMSOLL_HD inline void with_function(const ActivationCurve& c, Body body) {
  switch (c.curve) {
    case Curve::kGelu:
      return body([](float x, auto& division) { return gelu_of(x, division); });
    case Curve::kRelu:
      return body([](float x, auto&) { return relu_of(x); });
    case Curve::kSilu:
      return body([](float x, auto& division) { return silu_of(x, division); });
    case Curve::kSquaredRelu:
      return body([](float x, auto&) { return squared_relu_of(x); });
    case Curve::kQuickGelu:
      return body([](float x, auto& division) { return quick_gelu_of(x, division); });
    case Curve::kSigmoid:
      return body([](float x, auto& division) { return sigmoid_of(x, division); });
    case Curve::kGeluErf:
      return body([](float x, auto& division) { return gelu_erf_of(x, division); });
    case Curve::kClampedSilu:
      return body([c](float x, auto& division) { return clamped_silu_of(c, x, division); });
  }
}

// The same with f(x, division), the value and the gradient.
template <class Body>
PLIMSOLL_HD inline void with_gradient(const ActivationCurve& c, Body body) {
  switch (c.curve) {
    case Curve::kGelu:
      return body([](float x, auto& division) { return gelu_and_gradient_of(x, division); });
    case Curve::kRelu:
      return body([](float x, auto&) { return relu_and_gradient_of(x); });
    case Curve::kSilu:
      return body([](float x, auto& division) { return silu_and_gradient_of(x, division); });
    case Curve::kSquaredRelu:
      return body([](float x, auto&) { return squared_relu_and_gradient_of(x); });
    case Curve::kQuickGelu:
      return body([](float x, auto& division) { return quick_gelu_and_gradient_of(x, division); });
    case Curve::kSigmoid:
      return body([](float x, auto& division) { return sigmoid_and_gradient_of(x, division); });
    case Curve::kGeluErf:
      return body([](float x, auto& division) { return gelu_erf_and_gradient_of(x, division); });
    case Curve::kClampedSilu:
      return body([c](float x, auto& division) { return clamped_silu_and_gradient_of(c, x, division); });
  }
}

// The factor of a gate, and its gradient, of that of the product.
PLIMSOLL_HD inline float gated_value_of(const ActivationCurve& c, float value) {
  return c.curve == Curve::kClampedSilu ? clamped_to(c.limit, value) + c.offset : value;
}
PLIMSOLL_HD inline float gated_gradient_of(const ActivationCurve& c, float value, float gradient) {
  return c.curve != Curve::kClampedSilu || clamped_to(c.limit, value) == value ? gradient : 0.0f;
}

}  // namespace plimsoll::kernels
