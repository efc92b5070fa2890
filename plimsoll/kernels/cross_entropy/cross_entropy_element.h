// Arithmetic of a cross entropy on one logit and on one row, for CUDA devices. cross_entropy_loops.inc has it on vectors, in the same
// order.
#pragma once

#include "plimsoll/kernels/element_math.h"

namespace plimsoll::kernels {

// Largest excess of logits over the reference, the value that their exponentials are relative to: a chunk is seldom done twice, and the
// logarithm of the sum stays small.
inline constexpr float kLogitRise = 4.0f;

// The reference once a chunk with this largest logit has been seen.
PLIMSOLL_HD inline float raised_reference(float reference, float largest) {
  return largest > reference + kLogitRise ? largest : reference;
}

// The logit that the exponentials of a chunk are relative to: -Inf - -Inf would be NaN.
PLIMSOLL_HD inline float exponential_base(float reference) { return reference == -__builtin_inff() ? 0.0f : reference; }

// log2 of e^(x - reference).
PLIMSOLL_HD inline float exponent_of(float x, float reference) { return (x - reference) * 1.44269504f; }
PLIMSOLL_HD inline float exponential_of(float x, float reference) { return exp2_bounded_of(exponent_of(x, reference)); }

// Sums over a row of logits.
struct LogitSums {
  float reference, sum;  // of the exponentials, relative to the reference
  float mean;            // of the logits; with label smoothing
};

// The loss before the class's weight.
PLIMSOLL_HD inline float cross_entropy_of(const LogitSums& row, float target_logit, float smoothing) {
  const float log_sum = log_of(row.sum), loss = (row.reference - target_logit) + log_sum;
  if (smoothing == 0.0f) return loss;
  return (1.0f - smoothing) * loss + smoothing * ((row.reference - row.mean) + log_sum);
}

// Gradient of the target's logit: p - q cancels here, so it is taken before the factor. share: of each class in the smoothed target.
PLIMSOLL_HD inline float target_gradient_of(const LogitSums& row, float target_logit, float smoothing, float share,
                                            float factor) {
  const float p = exponential_of(target_logit, row.reference) / row.sum;
  return ((p - (1.0f - smoothing)) - share) * factor;
}

}  // namespace plimsoll::kernels
