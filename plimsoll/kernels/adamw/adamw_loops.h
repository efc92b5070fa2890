// The loop of an AdamW step on one instruction set. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/adamw_coefficients.h"

namespace plimsoll::kernels {

// Elements of a group; what a group has of each array fills whole lines of the cache. Groups are those of the tensor that
// the arguments may be part of: group g is its elements from 64 g on.
inline constexpr int64_t kAdamWGroup = 64;

struct AdamWLoops {
  // Updates what the arguments have of groups [begin, end), which share the keys. Returns the bit pattern of the amax.
  int32_t (*groups)(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end);
};

extern const AdamWLoops kAdamWLoopsPortable, kAdamWLoopsAvx2, kAdamWLoopsAvx512;

}  // namespace plimsoll::kernels
