// First moments of 8 bits as FP32, in units of their scale: x = code / (254 - |code|), codes from -127 to 127. Rules:
// adamw.h. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

// The quotients of the codes from 0 on, their upper and lower 16 bits apart. The divider, which a step's square root and
// quotient fill already, is the slowest unit of a processor.
struct alignas(64) Quotients {
  uint16_t upper[128] = {}, lower[128] = {};
  constexpr Quotients() {
    for (int code = 0; code < 128; ++code) {
      const auto word = __builtin_bit_cast(uint32_t, static_cast<float>(code) / static_cast<float>(254 - code));
      upper[code] = static_cast<uint16_t>(word >> 16);
      lower[code] = static_cast<uint16_t>(word);
    }
  }
};

PLIMSOLL_INLINE __m512i look_up(const uint16_t (&table)[128], __m512i place, __mmask32 is_above_63) {
  const auto part = [&](int from) __attribute__((always_inline)) { return _mm512_load_si512(table + from); };
  const __m512i below = _mm512_permutex2var_epi16(part(0), place, part(32));
  const __m512i above = _mm512_permutex2var_epi16(part(64), place, part(96));
  return _mm512_mask_mov_epi16(below, is_above_63, above);
}

PLIMSOLL_INLINE void expand_moment1(const int8_t* codes, F32x16 (&x)[kVectors]) {
  static constexpr Quotients kQuotients;
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  // Dwords of codes in the order in which the halves of 128 bits come together below.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i*)(codes + 32 * i));
    const __m512i code = _mm512_cvtepi8_epi16(_mm256_permutevar8x32_epi32(bytes, order)),
                  place = _mm512_abs_epi16(code);
    const __mmask32 is_above_63 = _mm512_test_epi16_mask(place, _mm512_set1_epi16(64));
    const __m512i lower = look_up(kQuotients.lower, place, is_above_63);
    const __m512i upper = _mm512_ternarylogic_epi32(look_up(kQuotients.upper, place, is_above_63), code,
                                                    _mm512_set1_epi16(INT16_MIN), kOrAnd);
    x[2 * i].v = _mm512_castsi512_ps(_mm512_unpacklo_epi16(lower, upper));
    x[2 * i + 1].v = _mm512_castsi512_ps(_mm512_unpackhi_epi16(lower, upper));
  }
}

#else

PLIMSOLL_INLINE void expand_moment1(const int8_t* codes, F32x16 (&x)[kVectors]) {
  for (int j = 0; j < kVectors; ++j) {
    const F32x16 code = to_float(load_i8(codes + 16 * j));
    x[j] = div(code, sub(set(254), abs(code)));
  }
}

#endif

}  // namespace
}  // namespace plimsoll::kernels
