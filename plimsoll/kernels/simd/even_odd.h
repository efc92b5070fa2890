// 32 elements of a row as their even and their odd ones, the order in which two codes make a byte, and 8 and 8 lanes as
// two blocks of 16 of them. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/bf16_pairs.h"
#include "plimsoll/kernels/simd/row.h"

namespace plimsoll::kernels {
namespace {

struct EvenOdd {
  F32x16 even, odd;  // elements 0, 2, ... and 1, 3, ...
};

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE EvenOdd split_even_odd(F32x16 low, F32x16 high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {{_mm512_permutex2var_ps(low.v, even, high.v)}, {_mm512_permutex2var_ps(low.v, odd, high.v)}};
}
// The first 16 elements, then the others.
PLIMSOLL_INLINE void join_even_odd(EvenOdd x, F32x16& low, F32x16& high) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  low.v = _mm512_permutex2var_ps(x.even.v, first, x.odd.v);
  high.v = _mm512_permutex2var_ps(x.even.v, last, x.odd.v);
}
// `low` in lanes 0 .. 7, `high` in the others.
PLIMSOLL_INLINE F32x16 set_halves(float low, float high) {
  return {_mm512_mask_broadcastss_ps(_mm512_set1_ps(low), 0xff00, _mm_set_ss(high))};
}
// Lane i ^ kDistance in lane i; 1, 2, 4 or 8.
template <int kDistance>
PLIMSOLL_INLINE F32x16 swap_lanes(F32x16 x) {
  if constexpr (kDistance == 1) return {_mm512_permute_ps(x.v, 0xb1)};
  if constexpr (kDistance == 2) return {_mm512_permute_ps(x.v, 0x4e)};
  if constexpr (kDistance == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xb1)};
  if constexpr (kDistance == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x4e)};
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

PLIMSOLL_INLINE EvenOdd split_even_odd(F32x16 low, F32x16 high) {
  const auto pick = [](__m256 mixed) __attribute__((always_inline)) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
  };
  return {{pick(_mm256_shuffle_ps(low.a, low.b, 0x88)), pick(_mm256_shuffle_ps(high.a, high.b, 0x88))},
          {pick(_mm256_shuffle_ps(low.a, low.b, 0xdd)), pick(_mm256_shuffle_ps(high.a, high.b, 0xdd))}};
}
PLIMSOLL_INLINE void join_even_odd(EvenOdd x, F32x16& low, F32x16& high) {
  const auto join = [](__m256 even, __m256 odd) __attribute__((always_inline)) {
    const __m256 first = _mm256_unpacklo_ps(even, odd), last = _mm256_unpackhi_ps(even, odd);
    return F32x16{_mm256_permute2f128_ps(first, last, 0x20), _mm256_permute2f128_ps(first, last, 0x31)};
  };
  low = join(x.even.a, x.odd.a);
  high = join(x.even.b, x.odd.b);
}
PLIMSOLL_INLINE F32x16 set_halves(float low, float high) { return {_mm256_set1_ps(low), _mm256_set1_ps(high)}; }
template <int kDistance>
PLIMSOLL_INLINE F32x16 swap_lanes(F32x16 x) {
  if constexpr (kDistance == 1) return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
  if constexpr (kDistance == 2) return {_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e)};
  if constexpr (kDistance == 4) {
    return {_mm256_permute2f128_ps(x.a, x.a, 0x01), _mm256_permute2f128_ps(x.b, x.b, 0x01)};
  }
  if constexpr (kDistance == 8) return {x.b, x.a};
}

#else

PLIMSOLL_LONG EvenOdd split_even_odd(F32x16 low, F32x16 high) {
  float x[32], even[16], odd[16];
  store(x, low);
  store(x + 16, high);
  for (int i = 0; i < 16; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
  return {load(even), load(odd)};
}
PLIMSOLL_LONG void join_even_odd(EvenOdd x, F32x16& low, F32x16& high) {
  float even[16], odd[16], joined[32];
  store(even, x.even);
  store(odd, x.odd);
  for (int i = 0; i < 16; ++i) {
    joined[2 * i] = even[i];
    joined[2 * i + 1] = odd[i];
  }
  low = load(joined);
  high = load(joined + 16);
}
PLIMSOLL_INLINE F32x16 set_halves(float low, float high) {
  return groups<F32x16>([=](int i) { return i < 2 ? F32x4{low, low, low, low} : F32x4{high, high, high, high}; });
}
template <int kDistance>
PLIMSOLL_INLINE F32x16 swap_lanes(F32x16 x) {
  if constexpr (kDistance >= 4) return groups<F32x16>([&](int i) { return x.v[i ^ (kDistance / 4)]; });
  return groups<F32x16>([&](int i) {
    return kDistance == 1 ? F32x4{x.v[i][1], x.v[i][0], x.v[i][3], x.v[i][2]}
                          : F32x4{x.v[i][2], x.v[i][3], x.v[i][0], x.v[i][1]};
  });
}

#endif

// 32 elements of p, whose format is kFp32, kBf16 or kFp16.
template <format::Format kFormat>
PLIMSOLL_INLINE EvenOdd load_even_odd(const void* p, int64_t i) {
  if constexpr (kFormat == format::Format::kBf16) {
    const Bf16Pairs pairs = load_bf16_pairs(static_cast<const uint16_t*>(p) + i);
    return {pairs.even, pairs.odd};
  } else {
    return split_even_odd(load_as<kFormat>(p, i, AllLanes{}), load_as<kFormat>(p, i + 16, AllLanes{}));
  }
}

// The first n of them, 0 <= n <= 32, and zeros.
template <format::Format kFormat>
PLIMSOLL_INLINE EvenOdd load_even_odd_n(const void* p, int64_t i, int64_t n) {
  const int64_t low = n < 16 ? n : 16;
  return split_even_odd(load_as<kFormat>(p, i, low), load_as<kFormat>(p, i + 16, n - low));
}

}  // namespace
}  // namespace plimsoll::kernels
