// Effect of FP16 on numbers that are multiplied by a power of two first.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>

namespace plimsoll::gauge {

// log2(65504 / (amax * 2^exponent)): infinite for an amax of 0.
double fp16_headroom(float amax, int exponent = 0);

// Number of a weight's elements with each exponent. Zeros have none.
struct ExponentCounts {
  float amax = 0;
  int64_t elements = 0;                  // that are not 0
  std::array<int64_t, 256> counts = {};  // by FP32's biased exponent
};
// Counts the exponents of a weight's fp32, bf16 or fp16 values.
ExponentCounts count_exponents(const at::Tensor& weight);
// The same of 1 + weight, where FP16 holds the weight: near -1 its grid is 2^-11, so that 1 + weight loses below 2^-1 the
// bits that other numbers lose below 2^-14. The counts are shifted by these 13 exponents; amax is that of 1 + weight.
ExponentCounts count_exponents_of_one_plus(const at::Tensor& weight);

// Bits of FP16's 11 that an element loses to subnormal numbers, the mean of all elements that are not 0.
double lost_bits(const ExponentCounts& counts, int exponent);

}  // namespace plimsoll::gauge
