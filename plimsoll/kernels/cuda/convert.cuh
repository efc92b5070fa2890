// Codes of two values at once, by the card's conversions where it has them. Those differ from format/ in Inf and NaN, whose codes are
// put in their places afterwards.
#pragma once

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/fp16.h"
#include "plimsoll/format/fp8.h"

namespace plimsoll::kernels {

using format::Format;

// The first value in the low half.
struct TwoCodes {
  uint32_t bits;
};

// By the card's conversion; of NaN and Inf it has no meaning here.
template <class Out>
__device__ inline uint32_t encode_two_finite(float first, float second) {
  constexpr Format kFormat = Out::kFormat;
  [[maybe_unused]] uint16_t codes = 0;
  [[maybe_unused]] uint32_t wide = 0;
  if constexpr (kFormat == Format::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(wide) : "f"(second), "f"(first));
    return wide;
  } else if constexpr (kFormat == Format::kFp16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(wide) : "f"(second), "f"(first));
    return wide;
  } else {
#if __CUDA_ARCH__ >= 890
    if constexpr (kFormat == Format::kE4m3) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    }
    return codes;
#else
    return uint32_t{Out::encode(first)} | uint32_t{Out::encode(second)} << Out::kBits;
#endif
  }
}

// Out: Fp16, Bf16, E4m3, E5m2. FP8 saturates, but E5M2 keeps Inf.
template <class Out>
__device__ inline TwoCodes encode_two(float first, float second) {
  constexpr uint32_t kOne = (uint32_t{1} << Out::kBits) - 1;
  const float infinity = __int_as_float(0x7f800000);
  uint32_t codes = encode_two_finite<Out>(first, second);
  // False for NaN and Inf, and for some finite values near FP32's largest.
  if (!(fabsf(first) + fabsf(second) < infinity)) {
    if (!(fabsf(first) < infinity)) codes = (codes & ~kOne) | Out::encode_non_finite(first);
    if (!(fabsf(second) < infinity)) codes = (codes & kOne) | uint32_t{Out::encode_non_finite(second)} << Out::kBits;
  }
  return {codes};
}

__device__ inline float decode_fp16(uint16_t code) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
  return value == value ? value : format::Fp16::decode(code);
}

struct TwoValues {
  float first, second;
};

// NaN of any sign and payload for a NaN.
template <class Fp8>
__device__ inline TwoValues decode_two_fp8(uint16_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  if constexpr (Fp8::kFormat == Format::kE4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
  }
  TwoValues values;
  asm("cvt.f32.f16 %0, %1;" : "=f"(values.first) : "h"(static_cast<uint16_t>(halves)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(values.second) : "h"(static_cast<uint16_t>(halves >> 16)));
  return values;
#else
  return {Fp8::decode(static_cast<uint8_t>(codes)), Fp8::decode(static_cast<uint8_t>(codes >> 8))};
#endif
}

}  // namespace plimsoll::kernels
