// Transpose of a 16 x 16 block of dwords held in 16 vectors: lane j of row[i] moves to lane i of row[j].
#pragma once

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE void transpose16(F32x16 (&row)[16]) {
  __m512 pair[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pair[i] = _mm512_unpacklo_ps(row[i].v, row[i + 1].v);
    pair[i + 1] = _mm512_unpackhi_ps(row[i].v, row[i + 1].v);
  }
  __m512 quad[16];  // quad[4 g + c]: column c of each lane group of four, rows 4 g .. 4 g + 3
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d low0 = _mm512_castps_pd(pair[i]), low1 = _mm512_castps_pd(pair[i + 2]);
    const __m512d high0 = _mm512_castps_pd(pair[i + 1]), high1 = _mm512_castps_pd(pair[i + 3]);
    quad[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
    quad[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
    quad[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
    quad[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 even0 = _mm512_shuffle_f32x4(quad[i], quad[i + 4], 0x88);
    const __m512 odd0 = _mm512_shuffle_f32x4(quad[i], quad[i + 4], 0xdd);
    const __m512 even1 = _mm512_shuffle_f32x4(quad[i + 8], quad[i + 12], 0x88);
    const __m512 odd1 = _mm512_shuffle_f32x4(quad[i + 8], quad[i + 12], 0xdd);
    row[i].v = _mm512_shuffle_f32x4(even0, even1, 0x88);
    row[i + 8].v = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    row[i + 4].v = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    row[i + 12].v = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

PLIMSOLL_INLINE void transpose8(__m256 (&row)[8]) {
  __m256 pair[8], quad[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
    row[i + 4] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
  }
}

PLIMSOLL_INLINE void transpose16(F32x16 (&row)[16]) {
  __m256 quarter[4][8];  // upper left, upper right, lower left, lower right
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    quarter[0][i] = row[i].a;
    quarter[1][i] = row[i].b;
    quarter[2][i] = row[i + 8].a;
    quarter[3][i] = row[i + 8].b;
  }
  for (auto& block : quarter) transpose8(block);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    row[i] = {quarter[0][i], quarter[2][i]};
    row[i + 8] = {quarter[1][i], quarter[3][i]};
  }
}

#else

PLIMSOLL_INLINE void transpose16(F32x16 (&row)[16]) {
  float from[16][16], to[16][16];
  for (int i = 0; i < 16; ++i) store(from[i], row[i]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) to[j][i] = from[i][j];
  }
  for (int i = 0; i < 16; ++i) row[i] = load(to[i]);
}

#endif

}  // namespace
}  // namespace plimsoll::kernels
