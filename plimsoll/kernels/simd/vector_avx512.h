// vector.h on AVX-512 F, BW, DQ, VL.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define PLIMSOLL_INLINE static inline __attribute__((always_inline))
#define PLIMSOLL_LONG PLIMSOLL_INLINE  // vector_portable.h calls these

namespace plimsoll::kernels {
namespace {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 v;
};

PLIMSOLL_INLINE __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

PLIMSOLL_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
PLIMSOLL_INLINE F32x16 set(float x) { return {_mm512_set1_ps(x)}; }
PLIMSOLL_INLINE I32x16 set_i(int32_t x) { return {_mm512_set1_epi32(x)}; }

PLIMSOLL_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
PLIMSOLL_INLINE F32x16 load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
PLIMSOLL_INLINE void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
PLIMSOLL_INLINE void store_n(float* p, F32x16 x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x.v); }
PLIMSOLL_INLINE F32x16 keep_n(F32x16 x, int64_t n) { return {_mm512_maskz_mov_ps(first(n), x.v)}; }

PLIMSOLL_INLINE F32x16 bf16_to_float(__m256i x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
PLIMSOLL_INLINE F32x16 load_bf16(const uint16_t* p) { return bf16_to_float(_mm256_loadu_si256((const __m256i*)p)); }
PLIMSOLL_INLINE F32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  return bf16_to_float(_mm256_maskz_loadu_epi16(first(n), p));
}
PLIMSOLL_INLINE F32x16 load_fp16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
PLIMSOLL_INLINE F32x16 load_fp16_n(const uint16_t* p, int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
}
PLIMSOLL_INLINE I32x16 load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
PLIMSOLL_INLINE I32x16 load_u8_n(const uint8_t* p, int64_t n) {
  return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first(n), p))};
}

PLIMSOLL_INLINE __m256i float_to_bf16(F32x16 x) {
  const __m512i word = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(word, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
PLIMSOLL_INLINE __m256i float_to_fp16(F32x16 x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
PLIMSOLL_INLINE void store_bf16(uint16_t* p, F32x16 x) { _mm256_storeu_si256((__m256i*)p, float_to_bf16(x)); }
PLIMSOLL_INLINE void store_bf16_n(uint16_t* p, F32x16 x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), float_to_bf16(x));
}
// The upper halves of a's and b's words, a's in the even places, and their lower halves.
struct SplitWords {
  __m512i upper, lower;
};
PLIMSOLL_INLINE SplitWords split_words(F32x16 a, F32x16 b) {
  constexpr int kOrAnd = 0xf8;  // x | (y & z)
  const __m512i even = _mm512_castps_si512(a.v), odd = _mm512_castps_si512(b.v);
  return {
      _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, _mm512_set1_epi32(INT32_C(-0x10000)), kOrAnd),
      _mm512_ternarylogic_epi32(_mm512_slli_epi32(odd, 16), even, _mm512_set1_epi32(0xffff), kOrAnd),
  };
}
// BF16 in the places of `upper`, nearest even; no NaN that has bits below.
PLIMSOLL_INLINE __m512i round_to_bf16(SplitWords x) {
  const __m512i odd = _mm512_and_si512(x.upper, _mm512_set1_epi16(1));
  const __mmask32 up = _mm512_cmpgt_epu16_mask(_mm512_adds_epu16(x.lower, odd), _mm512_set1_epi16(-0x8000));
  return _mm512_mask_sub_epi16(x.upper, up, x.upper, _mm512_set1_epi16(-1));
}
// The even places, then the odd ones.
PLIMSOLL_INLINE void store_even_odd(uint16_t* p, __m512i x) {
  const __m512i in_order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1,  //
                                            30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(in_order, x));
}
PLIMSOLL_INLINE __mmask16 unordered(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
PLIMSOLL_INLINE void store_bf16_32(uint16_t* p, F32x16 a, F32x16 b) {
  if (__builtin_expect(unordered(a, b) != 0, 0)) {
    store_bf16(p, a);
    return store_bf16(p + 16, b);
  }
  store_even_odd(p, round_to_bf16(split_words(a, b)));
}
PLIMSOLL_INLINE void store_upper_32(uint16_t* p, I32x16 a, I32x16 b) {
  store_even_odd(p, split_words({_mm512_castsi512_ps(a.v)}, {_mm512_castsi512_ps(b.v)}).upper);
}
PLIMSOLL_INLINE void store_fp16(uint16_t* p, F32x16 x) { _mm256_storeu_si256((__m256i*)p, float_to_fp16(x)); }
PLIMSOLL_INLINE void store_fp16_n(uint16_t* p, F32x16 x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), float_to_fp16(x));
}
PLIMSOLL_INLINE void store_u8(uint8_t* p, I32x16 x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x.v)); }
PLIMSOLL_INLINE void store_u8_n(uint8_t* p, I32x16 x, int64_t n) {
  _mm_mask_storeu_epi8(p, first(n), _mm512_cvtepi32_epi8(x.v));
}

PLIMSOLL_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PLIMSOLL_INLINE F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
PLIMSOLL_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
PLIMSOLL_INLINE F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }

PLIMSOLL_INLINE I32x16 bits(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
PLIMSOLL_INLINE F32x16 from_bits(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
PLIMSOLL_INLINE F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
PLIMSOLL_INLINE I32x16 to_int(F32x16 a) { return {_mm512_cvttps_epi32(a.v)}; }
PLIMSOLL_INLINE F32x16 round_even(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

PLIMSOLL_INLINE I32x16 and_i(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 or_i(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 xor_i(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 add_i(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 sub_i(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 min_i(I32x16 a, I32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 max_i(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
PLIMSOLL_INLINE I32x16 max_u16(I32x16 a, I32x16 b) { return {_mm512_max_epu16(a.v, b.v)}; }
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_right(I32x16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}

PLIMSOLL_INLINE Mask16 less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PLIMSOLL_INLINE Mask16 less_equal(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
PLIMSOLL_INLINE Mask16 equal(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
PLIMSOLL_INLINE Mask16 less_i(I32x16 a, I32x16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) { return {_mm512_mask_mov_ps(no.v, m.v, yes.v)}; }
PLIMSOLL_INLINE I32x16 select_i(Mask16 m, I32x16 yes, I32x16 no) { return {_mm512_mask_mov_epi32(no.v, m.v, yes.v)}; }
PLIMSOLL_INLINE bool any(Mask16 m) { return m.v != 0; }
PLIMSOLL_INLINE bool all(Mask16 m) { return m.v == 0xffff; }

// Lane i + lane i + 8, then + 4, + 2, + 1.
PLIMSOLL_INLINE float reduce_add(F32x16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PLIMSOLL_INLINE float first_lane(F32x16 a) { return _mm512_cvtss_f32(a.v); }
PLIMSOLL_INLINE int32_t reduce_max_i(I32x16 a) { return _mm512_reduce_max_epi32(a.v); }

}  // namespace
}  // namespace plimsoll::kernels
