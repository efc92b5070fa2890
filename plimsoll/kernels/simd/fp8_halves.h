// E4M3 codes to FP16 by their bits alone: those of an FP16 number 2^8 times smaller, subnormals too. NaN, which becomes
// a number like the others, is noticed beside.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// see_64(codes, seen): notices 64 codes. halves_of_64(codes, halves, seen): and moves them. has_nan(seen): whether one
// of all was NaN.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

struct CodesSeen {
  __m512i largest = _mm512_setzero_si512();  // magnitudes, doubled, in each place
};

PLIMSOLL_INLINE void see_64(const uint8_t* codes, CodesSeen& seen) {
  const __m512i all = _mm512_loadu_si512(codes);
  seen.largest = _mm512_max_epu8(seen.largest, _mm512_add_epi8(all, all));
}

PLIMSOLL_INLINE void halves_of_64(const uint8_t* codes, uint16_t* halves, CodesSeen& seen) {
  see_64(codes, seen);
#pragma GCC unroll 2
  for (int i = 0; i < 64; i += 32) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    _mm512_storeu_si512(halves + i, _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(-0x4001)));
  }
}

PLIMSOLL_INLINE bool has_nan(const CodesSeen& seen) {
  return _mm512_cmpeq_epi8_mask(seen.largest, _mm512_set1_epi8(-2)) != 0;
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct CodesSeen {
  __m256i largest = _mm256_setzero_si256();  // magnitudes, doubled, of both 32 in each place
};

PLIMSOLL_INLINE void see_64(const uint8_t* codes, CodesSeen& seen) {
#pragma GCC unroll 2
  for (int i = 0; i < 64; i += 32) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    seen.largest = _mm256_max_epu8(seen.largest, _mm256_add_epi8(all, all));
  }
}

PLIMSOLL_INLINE void halves_of_64(const uint8_t* codes, uint16_t* halves, CodesSeen& seen) {
  see_64(codes, seen);
#pragma GCC unroll 4
  for (int i = 0; i < 64; i += 16) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4001));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves + i), moved);
  }
}

PLIMSOLL_INLINE bool has_nan(const CodesSeen& seen) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(seen.largest, _mm256_set1_epi8(-2))) != 0;
}

#else

struct CodesSeen {
  uint8_t largest[64] = {};  // magnitudes, doubled, in each place
};

PLIMSOLL_INLINE void see_64(const uint8_t* codes, CodesSeen& seen) {
  for (int i = 0; i < 64; ++i) {
    const auto doubled = static_cast<uint8_t>(codes[i] << 1);
    seen.largest[i] = seen.largest[i] < doubled ? doubled : seen.largest[i];
  }
}

PLIMSOLL_INLINE void halves_of_64(const uint8_t* codes, uint16_t* halves, CodesSeen& seen) {
  see_64(codes, seen);
  for (int i = 0; i < 64; ++i) {
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
