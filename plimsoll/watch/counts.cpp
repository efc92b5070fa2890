#include "plimsoll/watch/counts.h"

#include <cmath>

namespace plimsoll::watch {

Counts& Counts::operator+=(const Counts& other) {
  elements += other.elements;
  overflowed += other.overflowed;
  flushed += other.flushed;
  subnormal += other.subnormal;
  mass += other.mass;
  underflow_mass += other.underflow_mass;
  return *this;
}

double Counts::underflow_share() const {
  return elements == 0 ? 0 : static_cast<double>(flushed + subnormal) / static_cast<double>(elements);
}

double Counts::underflow_mass_share() const { return mass == 0 ? 0 : underflow_mass / mass; }

Counts count(std::span<const float> values, format::Format format, float inv_scale) {
  const format::FormatInfo& info = format::info(format);
  // Nearest even goes beyond the largest finite code from halfway to the next one on; the tie itself stays where that
  // code is even, as E4M3's is, whose next code is NaN.
  const double unit = std::ldexp(1.0, std::ilogb(info.max_finite) - info.mantissa_bits);
  const double limit = double{info.max_finite} + unit / 2;
  const bool tie_overflows = info.has_inf;
  const double smallest_kept = double{info.min_subnormal} / 2;  // the tie goes to zero, which is even
  Counts result{.elements = static_cast<int64_t>(values.size())};
  for (const float value : values) {
    const double magnitude = std::abs(double{value} * double{inv_scale});
    if (!(magnitude > 0) || !std::isfinite(magnitude)) continue;
    result.mass += magnitude;
    if (magnitude > limit || (tie_overflows && magnitude == limit)) ++result.overflowed;
    if (magnitude >= double{info.min_normal}) continue;
    result.underflow_mass += magnitude;
    if (magnitude <= smallest_kept) {
      ++result.flushed;
    } else {
      ++result.subnormal;
    }
  }
  return result;
}

bool worth_counting(float amax, format::Format format, float inv_scale) {
  constexpr float kNearTop = 4, kNearBottom = 1024;
  if (amax == 0 || format == format::Format::kFp32) return false;
  const float largest = amax * inv_scale;
  return !(largest < format::max_finite(format) / kNearTop && largest > format::info(format).min_normal * kNearBottom);
}

}  // namespace plimsoll::watch
