// The loop of an AdamW step on one instruction set, and the coefficients of the step. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels {

struct AdamWCoefficients {
  float decay;  // 1 - lr * weight_decay
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;             // lr / (1 - beta1^step)
  float inv_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float grad_scale;
  float l2;
  runtime::RoundingKeys keys;
};

// Elements of a group; what a group has of each array fills whole lines of the cache. Groups are those of the tensor that
// the arguments may be part of: group g is its elements from 64 g on.
inline constexpr int64_t kAdamWGroup = 64;

struct AdamWLoops {
  // Updates what the arguments have of groups [begin, end), which share the keys. Returns the bit pattern of the amax.
  int32_t (*groups)(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end);
};

extern const AdamWLoops kAdamWLoopsPortable, kAdamWLoopsAvx2, kAdamWLoopsAvx512;

}  // namespace plimsoll::kernels
