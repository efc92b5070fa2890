// Order in which the CPU's loops have a row that they read 64 elements at a time (simd/lanes64.h), for devices that sum in it.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// The element at `place` of a row of `count`: of BF16, 32 neighbours stand as their even and then their odd ones; what is left of whole
// 64 is in order.
PLIMSOLL_HD constexpr int64_t element_at_place(format::Format format, int64_t place, int64_t count) {
  if (format != format::Format::kBf16 || place >= count / 64 * 64) return place;
  return place / 32 * 32 + place % 16 * 2 + place / 16 % 2;
}

}  // namespace plimsoll::kernels
