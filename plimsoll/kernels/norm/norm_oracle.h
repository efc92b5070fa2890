// Norms and their gradients in double, from the definitions, and the error that FP32 may make. For tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {

struct NormParameters {
  NormKind kind;
  std::vector<double> gain, bias;
  double epsilon;
};

struct NormRow {
  double mean = 0, rstd = 0;
  std::vector<double> y;
};

inline NormRow norm_oracle(const NormParameters& parameters, const std::vector<double>& x) {
  const double count = static_cast<double>(x.size());
  NormRow result;
  if (parameters.kind == NormKind::kLayerNorm) {
    for (double value : x) result.mean += value / count;
  }
  double variance = 0;
  for (double value : x) variance += (value - result.mean) * (value - result.mean) / count;
  result.rstd = 1 / std::sqrt(variance + parameters.epsilon);
  for (size_t i = 0; i < x.size(); ++i) {
    result.y.push_back((x[i] - result.mean) * result.rstd * parameters.gain[i] + parameters.bias[i]);
  }
  return result;
}

struct NormBound {
  double mean = 0, rstd = 0;
  std::vector<double> y;
};

// First the mean: D additions and a division. Each difference inherits its error and rounds once; the squares' sum
// rounds D + 1 times, the division, + epsilon, the root (which halves what came before) and the reciprocal once each.
inline NormBound norm_bound(const NormParameters& parameters, const std::vector<double>& x, const NormRow& exact) {
  constexpr double kUnit = 0x1p-24, kTiny = 4 * 0x1p-149;
  const double count = static_cast<double>(x.size()), depth = sum_depth(static_cast<int64_t>(x.size()));
  NormBound bound;
  double magnitude = 0, variance = 0, variance_error = 0;
  for (double value : x) magnitude += std::abs(value) / count;
  if (parameters.kind == NormKind::kLayerNorm) bound.mean = gamma(depth + 1) * magnitude + kTiny;
  auto difference_error = [&](double difference) { return bound.mean + kUnit * (std::abs(difference) + bound.mean); };
  for (double value : x) {
    const double difference = std::abs(value - exact.mean), error = difference_error(difference);
    variance += difference * difference / count;
    variance_error += (2 * difference * error + error * error) / count;
  }
  variance_error += gamma(depth + 2) * (variance + variance_error);
  const double relative = variance_error / (variance + parameters.epsilon) + kUnit;
  const double rstd_relative = (relative < 1 ? 1 / std::sqrt(1 - relative) : INFINITY) * (1 + gamma(2)) - 1;
  bound.rstd = exact.rstd * rstd_relative;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - exact.mean);
    const double computed = (difference + difference_error(difference)) * (1 + rstd_relative) * (1 + gamma(3));
    const double error = exact.rstd * std::abs(parameters.gain[i]) * (computed - difference);
    bound.y.push_back(error + kUnit * (std::abs(exact.y[i]) + error) + kTiny);
  }
  return bound;
}

struct NormGradient {
  std::vector<double> dx, bound;  // bound: what FP32 may add, given mean and rstd
};

// With g = dy gain and n = (x - mean) rstd: dx = rstd (g - mean(g) - n mean(g n)). Roundings: g 2, n 2, means D + 1 and
// one product, then at most five on the way to dx.
inline NormGradient norm_gradient_oracle(const NormParameters& parameters, const std::vector<double>& x,
                                         const std::vector<double>& dy, double mean, double rstd) {
  const double count = static_cast<double>(x.size()), depth = sum_depth(static_cast<int64_t>(x.size()));
  double mean_g = 0, mean_gn = 0, magnitude_g = 0, magnitude_gn = 0;
  auto g = [&](size_t i) { return dy[i] * parameters.gain[i]; };
  auto n = [&](size_t i) { return (x[i] - mean) * rstd; };
  for (size_t i = 0; i < x.size(); ++i) {
    if (parameters.kind == NormKind::kLayerNorm) {
      mean_g += g(i) / count;
      magnitude_g += std::abs(g(i)) / count;
    }
    mean_gn += g(i) * n(i) / count;
    magnitude_gn += std::abs(g(i) * n(i)) / count;
  }
  NormGradient result;
  for (size_t i = 0; i < x.size(); ++i) {
    result.dx.push_back(rstd * (g(i) - mean_g - n(i) * mean_gn));
    const double magnitude = gamma(7) * (std::abs(g(i)) + std::abs(mean_g) + std::abs(n(i) * mean_gn)) +
                             gamma(depth + 8) * magnitude_g + gamma(depth + 13) * std::abs(n(i)) * magnitude_gn;
    result.bound.push_back(rstd * magnitude + 8 * 0x1p-149);
  }
  return result;
}

}  // namespace plimsoll::kernels::testing
