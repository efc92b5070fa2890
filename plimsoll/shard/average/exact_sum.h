// Sums of squares of fp32 numbers without rounding, so that neither their order nor who added which of them matters.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace plimsoll::shard {

// For each binary exponent that a square may have, the sum of the mantissas, in two halves of 24 bits. Sums of such
// sums element by element are exact, up to 2^38 squares in all.
class ExactSumOfSquares {
 public:
  // fp64's: a square of an fp32 number is a normal fp64 number, or zero.
  static constexpr int kExponents = 2048;
  static constexpr int kMantissaBits = 52;
  // A square has 48 bits of mantissa, and then zeros.
  static constexpr int kZeros = 5, kHalf = 24;
  using Words = std::array<int64_t, 2 * kExponents>;

  void add(std::span<const float> values);

  Words& words() { return words_; }

  // Rounded to fp64 in one order. NaN or Inf if a value was.
  double value() const;

 private:
  Words words_ = {};
};

}  // namespace plimsoll::shard
