// Activations and their derivatives in double, from the definitions, and the error that FP32 may make. For tests.
#pragma once

#include <algorithm>
#include <cmath>

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {

struct Value {
  double exact, bound;
};

inline constexpr double kUnit = 0x1p-24;
inline constexpr double kTiny = 0x1p-126;  // results below are subnormal; e^88.7 overflows where the sigmoid is 2^-128

// x sigmoid(z). GELU's z = 2 sqrt(2 / pi) (x + 0.044715 x^3) has two rounded constants and four operations, quick
// GELU's 1.702 x one of each, SiLU's z = x none; exp is within 2 ulp (4 units) and turns the error of z into a relative one; 1 + e and 1 / e round once each.
struct Sigmoid {
  double s, error;  // error is relative
};
inline Sigmoid sigmoid_oracle(double z, double z_roundings) {
  const double s = 1 / (1 + std::exp(-z)), rest = 1 / (1 + std::exp(z));
  return {s, kUnit * ((z_roundings * std::abs(z) + 4) * rest + 2)};
}

struct Argument {
  double z, slope, z_roundings, slope_roundings;
};
// Parameters are read by the one curve that has any.
inline constexpr ActivationParameters kDefaultParameters = ActivationSpec(Activation::kClampedSwiglu).parameters;

inline Argument argument_of(Curve curve, double x, const ActivationParameters& parameters) {
  if (curve == Curve::kSilu || curve == Curve::kSigmoid) return {x, 1, 0, 0};
  if (curve == Curve::kQuickGelu) return {1.702 * x, 1.702, 2, 2};
  if (curve == Curve::kClampedSilu) return {static_cast<double>(parameters[1]) * x, parameters[1], 2, 2};
  const double a = 2 * std::sqrt(2 / M_PI);
  return {a * (x + 0.044715 * x * x * x), a * (1 + 3 * 0.044715 * x * x), 6, 5};
}

// The share of a normal distribution below x, and x times its density. Errors: kernels/simd/tanh_erf.h.
struct Normal {
  double share, rest;
};
inline Normal normal_oracle(double x) {
  return {std::erfc(-x / std::sqrt(2.0)) / 2, x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
}

inline Value activation_oracle(Curve curve, double x, const ActivationParameters& parameters = kDefaultParameters) {
  if (curve == Curve::kClampedSilu) x = std::min(x, static_cast<double>(parameters[0]));
  if (curve == Curve::kRelu) return {x > 0 ? x : 0, 0};
  if (curve == Curve::kSquaredRelu) return {x > 0 ? x * x : 0, x * x * kUnit + kTiny};
  if (curve == Curve::kGeluErf) {
    const double y = x * normal_oracle(x).share;
    return {y, (9 + x * x / 2) * kUnit * std::abs(y) * kSecondOrder + kTiny * (1 + std::abs(x))};
  }
  const Argument argument = argument_of(curve, x, parameters);
  const Sigmoid sigmoid = sigmoid_oracle(argument.z, argument.z_roundings);
  if (curve == Curve::kSigmoid) return {sigmoid.s, sigmoid.s * sigmoid.error * kSecondOrder + kTiny};
  const double y = x * sigmoid.s;
  return {y, std::abs(y) * (sigmoid.error + kUnit) * kSecondOrder + kTiny * (1 + std::abs(x))};
}

// s (1 + x (1 - s) z'); the sigmoid's own is s (1 - s) = e^-x s^2: an exponential (4 units), s twice and two products.
inline Value derivative_oracle(Curve curve, double x, const ActivationParameters& parameters = kDefaultParameters) {
  if (curve == Curve::kClampedSilu && x > parameters[0]) return {0, 0};
  if (curve == Curve::kRelu) return {x > 0 ? 1.0 : 0.0, 0};
  if (curve == Curve::kSquaredRelu) return {x > 0 ? 2 * x : 0, 0};
  if (curve == Curve::kGeluErf) {
    const auto [share, rest] = normal_oracle(x);
    return {share + rest, (12 + x * x) * kUnit * (share + std::abs(rest)) * kSecondOrder + kTiny};
  }
  const Argument argument = argument_of(curve, x, parameters);
  const Sigmoid sigmoid = sigmoid_oracle(argument.z, argument.z_roundings);
  const double s = sigmoid.s, rest = 1 / (1 + std::exp(argument.z));
  if (curve == Curve::kSigmoid) {
    return {s * rest, s * rest * (2 * sigmoid.error + 6 * kUnit) * kSecondOrder + kTiny};
  }
  const double term = x * rest * argument.slope;
  const double rest_error = s * sigmoid.error + kUnit * rest;
  const double term_error =
      std::abs(x * argument.slope) * rest_error + std::abs(term) * kUnit * (argument.slope_roundings + 2);
  const double exact = s * (1 + term);
  return {exact,
          (s * (term_error + kUnit * std::abs(1 + term)) + std::abs(exact) * (sigmoid.error + kUnit)) * kSecondOrder +
              kTiny * (1 + std::abs(term))};
}

// The value that a gate multiplies, and its slope.
struct Gated {
  Value value;
  double slope;
};
inline Gated gated_oracle(Curve curve, double value, const ActivationParameters& parameters) {
  if (curve != Curve::kClampedSilu) return {{value, 0}, 1};
  const double limit = parameters[0], sum = std::clamp(value, -limit, limit) + parameters[2];
  return {{sum, std::abs(sum) * kUnit}, std::abs(value) <= limit ? 1.0 : 0.0};
}

}  // namespace plimsoll::kernels::testing
