// E4M3 codes to FP16 by their bits alone: those of an FP16 number 2^8 times smaller, subnormals too. NaN, which becomes
// a number like the others, is noticed beside.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

struct CodesSeen {
  __m512i largest = _mm512_setzero_si512();  // magnitudes, doubled, in each place
};

PLIMSOLL_INLINE void halves_of_64(const uint8_t* codes, uint16_t* halves, CodesSeen& seen) {
  const __m512i all = _mm512_loadu_si512(codes);
  seen.largest = _mm512_max_epu8(seen.largest, _mm512_add_epi8(all, all));
#pragma GCC unroll 2
  for (int i = 0; i < 64; i += 32) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    _mm512_storeu_si512(halves + i, _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(-0x4001)));
  }
}

PLIMSOLL_INLINE bool has_nan(const CodesSeen& seen) {
  return _mm512_cmpeq_epi8_mask(seen.largest, _mm512_set1_epi8(-2)) != 0;
}

#else

struct CodesSeen {
  uint8_t largest[64] = {};  // magnitudes, doubled, in each place
};

PLIMSOLL_INLINE void halves_of_64(const uint8_t* codes, uint16_t* halves, CodesSeen& seen) {
  for (int i = 0; i < 64; ++i) {
    const auto doubled = static_cast<uint8_t>(codes[i] << 1);
    seen.largest[i] = seen.largest[i] < doubled ? doubled : seen.largest[i];
    halves[i] = static_cast<uint16_t>((codes[i] & 0x80) << 8 | (codes[i] & 0x7f) << 7);
  }
}

PLIMSOLL_INLINE bool has_nan(const CodesSeen& seen) {
  for (const uint8_t doubled : seen.largest) {
    if (doubled == 0xfe) return true;
  }
  return false;
}

#endif

}  // namespace
}  // namespace plimsoll::kernels
