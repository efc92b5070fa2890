// The factor with which values become codes.
#pragma once

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// The reciprocal of a scale in memory. No scale (nullptr, or 0 where none has been chosen yet) counts as 1. Each file
// has its own copy, because files are compiled for different instruction sets.
[[gnu::always_inline]] PLIMSOLL_HD static inline float inv_scale_at(const float* scale) {
  return scale == nullptr || *scale == 0.0f ? 1.0f : 1.0f / *scale;
}

}  // namespace plimsoll::kernels
