#include "plimsoll/shard/average/exact_sum.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace plimsoll::shard {
namespace {

constexpr int kBias = 1023, kSpecial = ExactSumOfSquares::kExponents - 1;
constexpr uint64_t kImplicitBit = uint64_t{1} << ExactSumOfSquares::kMantissaBits;

}  // namespace

void ExactSumOfSquares::add(std::span<const float> values) {
  for (const float value : values) {
    const double square = double{value} * double{value};
    const auto bits = std::bit_cast<uint64_t>(square);
    const auto exponent = static_cast<size_t>(bits >> kMantissaBits) & kSpecial;
    if (exponent == 0) continue;
    const uint64_t mantissa = ((bits & (kImplicitBit - 1)) | kImplicitBit) >> kZeros;
    words_[2 * exponent] += static_cast<int64_t>(mantissa >> kHalf);
    words_[2 * exponent + 1] += static_cast<int64_t>(mantissa & ((uint64_t{1} << kHalf) - 1));
  }
}

double ExactSumOfSquares::value() const {
  if (words_[2 * kSpecial] != 0) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (int exponent = 1; exponent < kSpecial; ++exponent) {
    const auto at = static_cast<size_t>(2 * exponent);
    const double high = static_cast<double>(words_[at]) * (int64_t{1} << kHalf);
    sum += std::ldexp(high + static_cast<double>(words_[at + 1]), exponent - kBias - kMantissaBits + kZeros);
  }
  return sum;
}

}  // namespace plimsoll::shard
