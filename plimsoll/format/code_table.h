// Oracle of the format tests, written apart from small_float.h: every code's value from the definition of the format,
// in double, and the nearest entry of that table. Exact: neighbouring values and the FP32 inputs between them differ by
// amounts that double represents.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace plimsoll::format::testing {

struct Layout {
  int exponent_bits, mantissa_bits, bias;
  uint32_t finite_codes;  // codes 0 .. finite_codes - 1 are finite and not negative
};
inline constexpr Layout kE4m3Layout = {4, 3, 7, 0x7f};
inline constexpr Layout kE5m2Layout = {5, 2, 15, 0x7c};
inline constexpr Layout kE2m1Layout = {2, 1, 1, 8};
inline constexpr Layout kFp16Layout = {5, 10, 15, 0x7c00};
inline constexpr Layout kBf16Layout = {8, 7, 127, 0x7f80};

class CodeTable {
 public:
  explicit CodeTable(const Layout& layout) {
    const double steps = std::ldexp(1.0, layout.mantissa_bits);
    // One entry more than there are finite codes: where the next value would be if the exponent went on. Rounding to it
    // is overflow.
    for (uint32_t code = 0; code <= layout.finite_codes; ++code) {
      const int exponent = static_cast<int>(code >> layout.mantissa_bits);
      const double fraction = std::fmod(code, steps) / steps;
      values_.push_back(exponent == 0 ? std::ldexp(fraction, 1 - layout.bias)
                                      : std::ldexp(1.0 + fraction, exponent - layout.bias));
    }
  }

  uint32_t finite_codes() const { return static_cast<uint32_t>(values_.size()) - 1; }
  // Ascending; code finite_codes() stands for overflow.
  double value(uint32_t code) const { return values_[code]; }

  // The nearer of lower and lower + 1, between which magnitude lies; on a tie the even one.
  uint32_t nearer(double magnitude, uint32_t lower) const {
    const double down = magnitude - values_[lower], up = values_[lower + 1] - magnitude;
    if (down != up) return down < up ? lower : lower + 1;
    return lower % 2 == 0 ? lower : lower + 1;
  }

  // The largest code whose value is not above magnitude; finite_codes() for values beyond all.
  uint32_t at_or_below(double magnitude) const {
    uint32_t low = 0, high = finite_codes();
    while (low < high) {
      const uint32_t middle = (low + high + 1) / 2;
      if (values_[middle] <= magnitude) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  uint32_t nearest(double magnitude) const {
    const uint32_t lower = at_or_below(magnitude);
    return lower == finite_codes() ? lower : nearer(magnitude, lower);
  }

 private:
  std::vector<double> values_;
};

}  // namespace plimsoll::format::testing
