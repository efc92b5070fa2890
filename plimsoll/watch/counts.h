// Counts of elements that a format could not hold.
#pragma once

#include <cstdint>
#include <span>

#include "plimsoll/format/format.h"

namespace plimsoll::watch {

struct Counts {
  int64_t elements = 0;
  int64_t overflowed = 0;  // finite values beyond the largest finite code
  int64_t flushed = 0;     // values that became zero
  int64_t subnormal = 0;
  double mass = 0;            // sum of the finite magnitudes
  double underflow_mass = 0;  // of those flushed or subnormal

  Counts& operator+=(const Counts& other);
  double underflow_share() const;       // of the elements
  double underflow_mass_share() const;  // of the mass
};

// values * inv_scale on their way into `format`.
Counts count(std::span<const float> values, format::Format format, float inv_scale = 1);

// Whether a tensor of this amax is near enough to an end of the format for its elements to be worth counting: under two
// bits of headroom, or so small that of numbers spread evenly one in a thousand is below the smallest normal one. Never
// in FP32.
bool worth_counting(float amax, format::Format format, float inv_scale = 1);

}  // namespace plimsoll::watch
