// The largest lanes of 16 vectors at once, at a third of the instructions of 16 times reduce_max_i.
#pragma once

#include "plimsoll/kernels/simd/transpose16.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Lane i: the largest lane of v[i].
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
PLIMSOLL_INLINE I32x16 reduce_max_16(const I32x16 (&v)[16]) {
  // The 128 bits of lane group g hold four partial maxima of v[i + 4 g].
  __m512i groups[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto halves = [&](int j, int k) __attribute__((always_inline)) {
      return _mm512_max_epi32(_mm512_shuffle_i32x4(v[j].v, v[k].v, 0x44), _mm512_shuffle_i32x4(v[j].v, v[k].v, 0xee));
    };
    const __m512i low = halves(i, i + 4), high = halves(i + 8, i + 12);
    groups[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
  }
  // Now within 128 bits: 4 x 4 to 4.
  const auto pairs = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i low = pairs(groups[0], groups[1]), high = pairs(groups[2], groups[3]);
  return {_mm512_max_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high))};
}
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
PLIMSOLL_INLINE I32x16 reduce_max_16(const I32x16 (&v)[16]) {
  // Lane k of each 128 bits holds a partial maximum of v[4 i + k].
  __m256i groups[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto lanes = [&](int k) __attribute__((always_inline)) {
      return _mm256_max_epi32(v[4 * i + k].a, v[4 * i + k].b);
    };
    const auto pairs = [](__m256i a, __m256i b) __attribute__((always_inline)) {
      return _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    };
    const __m256i low = pairs(lanes(0), lanes(1)), high = pairs(lanes(2), lanes(3));
    groups[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
  }
  const auto halves = [](__m256i a, __m256i b) __attribute__((always_inline)) {
    return _mm256_max_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  };
  return {halves(groups[0], groups[1]), halves(groups[2], groups[3])};
}
#else
PLIMSOLL_INLINE I32x16 reduce_max_16(const I32x16 (&v)[16]) {
  F32x16 lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = from_bits(v[i]);
  transpose16(lanes);
  I32x16 result = bits(lanes[0]);
  for (int i = 1; i < 16; ++i) result = max_i(result, bits(lanes[i]));
  return result;
}
#endif

}  // namespace
}  // namespace plimsoll::kernels
