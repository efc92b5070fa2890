// Functions that the tests call on each ISA: arrays in, arrays out, n a multiple of nothing (tails are exercised).
#pragma once

#include <cstdint>

#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels {

struct SimdProbe {
  void (*encode_e4m3)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e4m3_non_finite)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e5m2)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e5m2_non_finite)(const float* x, uint8_t* codes, int64_t n);
  // The same, only whole groups of 64.
  void (*encode_e4m3_by_64)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e4m3_pairs)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e4m3_non_finite_by_64)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e4m3_non_finite_pairs)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e5m2_by_64)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e5m2_pairs)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e5m2_non_finite_by_64)(const float* x, uint8_t* codes, int64_t n);
  void (*encode_e5m2_non_finite_pairs)(const float* x, uint8_t* codes, int64_t n);
  void (*decode_e4m3)(const uint8_t* codes, float* y, int64_t n);
  void (*decode_e5m2)(const uint8_t* codes, float* y, int64_t n);
  void (*to_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*to_fp16)(const float* x, uint16_t* y, int64_t n);
  void (*from_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*from_fp16)(const uint16_t* x, float* y, int64_t n);
  // Only whole groups of 32; pairs: as even and odd elements.
  void (*to_bf16_by_32)(const float* x, uint16_t* y, int64_t n);
  void (*upper_by_32)(const float* x, uint16_t* y, int64_t n);
  void (*to_bf16_pairs)(const float* x, uint16_t* y, int64_t n);
  void (*from_bf16_pairs)(const uint16_t* x, float* y, int64_t n);
  void (*load_64_of_bf16)(const uint16_t* x, float* y);  // [64], lanes as they are
  void (*exp)(const float* x, float* y, int64_t n);
  void (*exp_clamped)(const float* x, float* y, int64_t n);
  void (*exp2_bounded)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);
  void (*sigmoid)(const float* x, float* y, int64_t n);
  void (*gelu)(const float* x, float* y, int64_t n);
  void (*gelu_gradient)(const float* x, float* y, int64_t n);
  void (*silu)(const float* x, float* y, int64_t n);
  void (*silu_gradient)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*gelu_erf)(const float* x, float* y, int64_t n);
  void (*gelu_erf_gradient)(const float* x, float* y, int64_t n);
  // One of the two that gelu_and_gradient and silu_and_gradient give.
  void (*gelu_of_both)(const float* x, float* y, int64_t n);
  void (*gelu_gradient_of_both)(const float* x, float* y, int64_t n);
  void (*silu_of_both)(const float* x, float* y, int64_t n);
  void (*silu_gradient_of_both)(const float* x, float* y, int64_t n);
  void (*round_even)(const float* x, float* y, int64_t n);
  void (*square_root)(const float* x, float* y, int64_t n);
  // y = a b + c, and y = c - a b.
  void (*fma)(const float* a, const float* b, const float* c, float* y, int64_t n);
  void (*fnma)(const float* a, const float* b, const float* c, float* y, int64_t n);
  float (*sum16)(const float* x);
  float (*amax)(const float* x, int64_t n);
  void (*max_u16)(const uint16_t* a, const uint16_t* b, uint16_t* y, int64_t n);        // whole groups of 32
  void (*reduce_max_16)(const int32_t* rows, int32_t* largest);                         // [16, 16] to [16]
  void (*philox)(uint64_t seed, uint64_t step, uint64_t first_block, uint32_t* words);  // [64]
  void (*rounding_words)(runtime::RoundingKeys keys, uint32_t lower, uint32_t* words);  // [16]
  void (*pack)(const int32_t* x, int8_t* y, uint8_t* unsigned_y, int8_t* upper);        // [64]; upper: of x * 2^16
  void (*unpack)(const int8_t* x, int32_t* y);                                          // [16]
};

extern const SimdProbe kSimdProbePortable, kSimdProbeAvx2, kSimdProbeAvx512;

}  // namespace plimsoll::kernels
