// vector.h on AVX2, FMA and F16C: two registers of 8 lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define PLIMSOLL_INLINE static inline __attribute__((always_inline))
#define PLIMSOLL_LONG PLIMSOLL_INLINE  // vector_portable.h calls these

namespace plimsoll::kernels {
namespace {

struct F32x16 {
  __m256 a, b;
};
struct I32x16 {
  __m256i a, b;
};
struct Mask16 {
  __m256i a, b;
};

PLIMSOLL_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PLIMSOLL_INLINE F32x16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PLIMSOLL_INLINE I32x16 set_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

PLIMSOLL_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PLIMSOLL_INLINE void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}

PLIMSOLL_INLINE __m256 bf16_to_float(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
PLIMSOLL_INLINE __m128i load_half(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
PLIMSOLL_INLINE F32x16 load_bf16(const uint16_t* p) {
  return {bf16_to_float(load_half(p)), bf16_to_float(load_half(p + 8))};
}
PLIMSOLL_INLINE F32x16 load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_half(p)), _mm256_cvtph_ps(load_half(p + 8))};
}
PLIMSOLL_INLINE I32x16 load_u8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}

PLIMSOLL_INLINE __m256i float_to_bf16(__m256 x) {
  const __m256i word = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(word, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
// Eight words and eight words to sixteen 16-bit values, in order.
PLIMSOLL_INLINE __m256i narrow_to_16(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
PLIMSOLL_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_to_16(float_to_bf16(x.a), float_to_bf16(x.b)));
}
PLIMSOLL_INLINE void store_bf16_32(uint16_t* p, F32x16 a, F32x16 b) {
  store_bf16(p, a);
  store_bf16(p + 16, b);
}
PLIMSOLL_INLINE void store_upper_32(uint16_t* p, I32x16 a, I32x16 b) {
  auto upper = [](I32x16 x) __attribute__((always_inline)) {
    return narrow_to_16(_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16));
  };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), upper(a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), upper(b));
}
PLIMSOLL_INLINE void store_fp16(uint16_t* p, F32x16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, kNearest));
}
PLIMSOLL_INLINE void store_u8(uint8_t* p, I32x16 x) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i words = narrow_to_16(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

#include "plimsoll/kernels/simd/vector_tail.inc"

PLIMSOLL_INLINE F32x16 add(F32x16 x, F32x16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
PLIMSOLL_INLINE F32x16 sub(F32x16 x, F32x16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
PLIMSOLL_INLINE F32x16 mul(F32x16 x, F32x16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
PLIMSOLL_INLINE F32x16 div(F32x16 x, F32x16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
PLIMSOLL_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
PLIMSOLL_INLINE F32x16 fnma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
PLIMSOLL_INLINE F32x16 min(F32x16 x, F32x16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
PLIMSOLL_INLINE F32x16 max(F32x16 x, F32x16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
PLIMSOLL_INLINE F32x16 sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }

PLIMSOLL_INLINE I32x16 bits(F32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
PLIMSOLL_INLINE F32x16 from_bits(I32x16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
PLIMSOLL_INLINE F32x16 to_float(I32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
PLIMSOLL_INLINE I32x16 to_int(F32x16 x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
PLIMSOLL_INLINE F32x16 round_even(F32x16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}

PLIMSOLL_INLINE I32x16 and_i(I32x16 x, I32x16 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 or_i(I32x16 x, I32x16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 xor_i(I32x16 x, I32x16 y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 add_i(I32x16 x, I32x16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 sub_i(I32x16 x, I32x16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 min_i(I32x16 x, I32x16 y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 max_i(I32x16 x, I32x16 y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
PLIMSOLL_INLINE I32x16 max_u16(I32x16 x, I32x16 y) { return {_mm256_max_epu16(x.a, y.a), _mm256_max_epu16(x.b, y.b)}; }
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_left(I32x16 x) {
  return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_right(I32x16 x) {
  return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
}
PLIMSOLL_INLINE F32x16 abs(F32x16 x) { return from_bits(and_i(bits(x), set_i(0x7fffffff))); }

template <int kCompare>
PLIMSOLL_INLINE Mask16 compare(F32x16 x, F32x16 y) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, kCompare)),
          _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, kCompare))};
}
PLIMSOLL_INLINE Mask16 less(F32x16 x, F32x16 y) { return compare<_CMP_LT_OQ>(x, y); }
PLIMSOLL_INLINE Mask16 less_equal(F32x16 x, F32x16 y) { return compare<_CMP_LE_OQ>(x, y); }
PLIMSOLL_INLINE Mask16 equal(F32x16 x, F32x16 y) { return compare<_CMP_EQ_OQ>(x, y); }
PLIMSOLL_INLINE Mask16 less_i(I32x16 x, I32x16 y) {
  return {_mm256_cmpgt_epi32(y.a, x.a), _mm256_cmpgt_epi32(y.b, x.b)};
}
PLIMSOLL_INLINE I32x16 select_i(Mask16 m, I32x16 yes, I32x16 no) {
  return {_mm256_blendv_epi8(no.a, yes.a, m.a), _mm256_blendv_epi8(no.b, yes.b, m.b)};
}
PLIMSOLL_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) { return from_bits(select_i(m, bits(yes), bits(no))); }
PLIMSOLL_INLINE bool any(Mask16 m) { return _mm256_movemask_epi8(_mm256_or_si256(m.a, m.b)) != 0; }
PLIMSOLL_INLINE bool all(Mask16 m) { return _mm256_movemask_epi8(_mm256_and_si256(m.a, m.b)) == -1; }

// Lane i + lane i + 8, then + 4, + 2, + 1.
PLIMSOLL_INLINE float reduce_add(F32x16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PLIMSOLL_INLINE float first_lane(F32x16 x) { return _mm256_cvtss_f32(x.a); }
PLIMSOLL_INLINE int32_t reduce_max_i(I32x16 x) {
  const __m256i eight = _mm256_max_epi32(x.a, x.b);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

}  // namespace
}  // namespace plimsoll::kernels
