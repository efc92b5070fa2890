// What the ISA files supply, and the coefficients that they share.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"

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
};

// Updates elements [begin, end); begin is a multiple of kAdamWGroup. Returns the bit pattern of the amax.
inline constexpr int64_t kAdamWGroup = 64;  // elements that one call of philox_64_words serves
int32_t adamw_range_portable(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end);
int32_t adamw_range_avx2(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end);
int32_t adamw_range_avx512(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end);

}  // namespace plimsoll::kernels
