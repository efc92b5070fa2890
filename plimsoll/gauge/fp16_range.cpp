#include "plimsoll/gauge/fp16_range.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "plimsoll/format/format.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::gauge {
namespace {

constexpr int kBias = 127;          // of FP32's exponents
constexpr int kLowestNormal = -14;  // FP16's smallest exponent with all its bits
constexpr int kPrecision = 11;      // bits of a normal FP16 number

}  // namespace

double fp16_headroom(float amax, int exponent) {
  if (amax == 0) return std::numeric_limits<double>::infinity();
  return std::log2(static_cast<double>(format::max_finite(format::Format::kFp16))) -
         std::log2(static_cast<double>(amax)) - exponent;
}

ExponentCounts count_exponents(const at::Tensor& weight) {
  const at::Tensor values = weight.to(at::kFloat).contiguous();
  ExponentCounts result{.amax = values.numel() == 0 ? 0.0f : ops::amax(values.view({1, -1}))};
  const float* first = values.const_data_ptr<float>();
  for (const float* value = first; value != first + values.numel(); ++value) {
    if (*value == 0) continue;
    ++result.counts[std::bit_cast<uint32_t>(*value) >> 23 & 0xff];
    ++result.elements;
  }
  return result;
}

ExponentCounts count_exponents_of_one_plus(const at::Tensor& weight) {
  const at::Tensor values = weight.to(at::kFloat) + 1;
  ExponentCounts result = count_exponents(values * std::ldexp(1.0, kLowestNormal + 1));
  result.amax = std::ldexp(result.amax, -(kLowestNormal + 1));
  return result;
}

double lost_bits(const ExponentCounts& counts, int exponent) {
  if (counts.elements == 0) return 0;
  double lost = 0;
  for (size_t i = 0; i < counts.counts.size(); ++i) {
    const int shortfall = kLowestNormal - (static_cast<int>(i) - kBias + exponent);
    lost += static_cast<double>(counts.counts[i]) * std::clamp(shortfall, 0, kPrecision);
  }
  return lost / static_cast<double>(counts.elements);
}

}  // namespace plimsoll::gauge
