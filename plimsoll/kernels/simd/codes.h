// Operations that vector.h lacks, for elements that are kept as integers of 8 bits. Internal linkage, as there.
//   load_i8(p)                                16 signed bytes
//   load_bf16(p, x)                           kVectors vectors of BF16
//   store_i8(p, x) store_u8(p, x)             kVectors vectors; what lies beyond 8 bits becomes the nearest that does not
//   store_upper_i8(p, x)                      the same of signed upper halves of words
//   nearest_int round_up copy_sign(magnitude, sign)   nearest_int: to nearest even, below 2^31
//   mul_i                                     the lower halves of products
//   max_magnitude(a, b)                       neither NaN
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

// Vectors that are worked on together: their codes fill a register.
constexpr int kVectors = 4;

PLIMSOLL_INLINE I32x16 load_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
PLIMSOLL_INLINE void load_bf16(const uint16_t* p, F32x16 (&x)[kVectors]) {
  constexpr __mmask32 kUpper = 0xaaaaaaaa;
  const __m512i low = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8,  //
                                       7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i halves = _mm512_loadu_si512(p + 32 * i);
    x[2 * i].v = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(kUpper, low, halves));
    x[2 * i + 1].v = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(kUpper, high, halves));
  }
}
// Four bytes of each vector in each 128 bits, to 16 of each vector.
PLIMSOLL_INLINE void store_packed(void* p, __m512i bytes) {
  const __m512i in_order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(in_order, bytes));
}
PLIMSOLL_INLINE void store_i8(int8_t* p, const I32x16 (&x)[kVectors]) {
  store_packed(p, _mm512_packs_epi16(_mm512_packs_epi32(x[0].v, x[1].v), _mm512_packs_epi32(x[2].v, x[3].v)));
}
PLIMSOLL_INLINE void store_u8(uint8_t* p, const I32x16 (&x)[kVectors]) {
  store_packed(p, _mm512_packus_epi16(_mm512_packs_epi32(x[0].v, x[1].v), _mm512_packs_epi32(x[2].v, x[3].v)));
}
PLIMSOLL_INLINE void store_upper_i8(int8_t* p, const I32x16 (&x)[kVectors]) {
  // Words of four lanes of a, then of b, in each 128 bits.
  const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 31, 29, 27, 25, 55, 53, 51, 49, 23, 21, 19, 17,  //
                                         47, 45, 43, 41, 15, 13, 11, 9, 39, 37, 35, 33, 7, 5, 3, 1);
  store_packed(p, _mm512_packs_epi16(_mm512_permutex2var_epi16(x[0].v, upper, x[1].v),
                                     _mm512_permutex2var_epi16(x[2].v, upper, x[3].v)));
}
PLIMSOLL_INLINE I32x16 nearest_int(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
PLIMSOLL_INLINE F32x16 round_up(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)};
}
PLIMSOLL_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  constexpr int kSecondWhereThird = 0xd8;  // z ? y : x
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude.v), _mm512_castps_si512(sign.v),
                                                        _mm512_set1_epi32(INT32_MIN), kSecondWhereThird))};
}
PLIMSOLL_INLINE I32x16 mul_i(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
PLIMSOLL_INLINE F32x16 max_magnitude(F32x16 a, F32x16 b) {
  constexpr int kLargerMagnitudeWithoutSign = 0b1011;
  return {_mm512_range_ps(a.v, b.v, kLargerMagnitudeWithoutSign)};
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

constexpr int kVectors = 2;

PLIMSOLL_INLINE I32x16 load_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
// Four bytes of each register in each 128 bits, to 8 of each register.
PLIMSOLL_INLINE void store_packed(void* p, __m256i bytes) {
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(bytes, in_order));
}
PLIMSOLL_INLINE void store_i8(int8_t* p, const I32x16 (&x)[kVectors]) {
  store_packed(p, _mm256_packs_epi16(_mm256_packs_epi32(x[0].a, x[0].b), _mm256_packs_epi32(x[1].a, x[1].b)));
}
PLIMSOLL_INLINE void store_u8(uint8_t* p, const I32x16 (&x)[kVectors]) {
  store_packed(p, _mm256_packus_epi16(_mm256_packs_epi32(x[0].a, x[0].b), _mm256_packs_epi32(x[1].a, x[1].b)));
}
PLIMSOLL_INLINE void store_upper_i8(int8_t* p, const I32x16 (&x)[kVectors]) {
  const auto upper = [](I32x16 y) __attribute__((always_inline)) {
    return _mm256_packs_epi32(_mm256_srai_epi32(y.a, 16), _mm256_srai_epi32(y.b, 16));
  };
  store_packed(p, _mm256_packs_epi16(upper(x[0]), upper(x[1])));
}
PLIMSOLL_INLINE I32x16 nearest_int(F32x16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
PLIMSOLL_INLINE F32x16 round_up(F32x16 x) {
  constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kUp), _mm256_round_ps(x.b, kUp)};
}
PLIMSOLL_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  const auto join = [=](__m256 x, __m256 s) __attribute__((always_inline)) {
    return _mm256_or_ps(_mm256_andnot_ps(bit, x), _mm256_and_ps(bit, s));
  };
  return {join(magnitude.a, sign.a), join(magnitude.b, sign.b)};
}
PLIMSOLL_INLINE I32x16 mul_i(I32x16 x, I32x16 y) {
  return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
}

#else

constexpr int kVectors = 2;

PLIMSOLL_LONG I32x16 load_i8(const int8_t* p) {
  int32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = p[i];
  I32x16 x;
  std::memcpy(&x, lanes, sizeof(x));
  return x;
}
PLIMSOLL_LONG void store_i8(int8_t* p, const I32x16 (&x)[kVectors]) {
  for (int j = 0; j < kVectors; ++j)
    store_u8(reinterpret_cast<uint8_t*>(p) + 16 * j, min_i(max_i(x[j], set_i(-128)), set_i(127)));
}
PLIMSOLL_LONG void store_u8(uint8_t* p, const I32x16 (&x)[kVectors]) {
  for (int j = 0; j < kVectors; ++j) store_u8(p + 16 * j, min_i(max_i(x[j], set_i(0)), set_i(255)));
}
PLIMSOLL_LONG void store_upper_i8(int8_t* p, const I32x16 (&x)[kVectors]) {
  I32x16 upper[kVectors];
  for (int j = 0; j < kVectors; ++j) upper[j] = groups<I32x16>([&](int i) { return x[j].v[i] >> 16; });
  store_i8(p, upper);
}
PLIMSOLL_INLINE I32x16 nearest_int(F32x16 a) { return to_int(round_even(a)); }
PLIMSOLL_LONG F32x16 round_up(F32x16 a) {
  const F32x16 cut = to_float(to_int(a));
  return select(less(cut, a), add(cut, set(1)), cut);
}
PLIMSOLL_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  return from_bits(or_i(and_i(bits(magnitude), set_i(INT32_MAX)), and_i(bits(sign), set_i(INT32_MIN))));
}
PLIMSOLL_INLINE I32x16 mul_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) {
    return reinterpret_cast<I32x4>(reinterpret_cast<U32x4>(a.v[i]) * reinterpret_cast<U32x4>(b.v[i]));
  });
}

#endif

#if !(defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__))
PLIMSOLL_INLINE void load_bf16(const uint16_t* p, F32x16 (&x)[kVectors]) {
  for (int j = 0; j < kVectors; ++j) x[j] = load_bf16(p + 16 * j);
}
PLIMSOLL_INLINE F32x16 max_magnitude(F32x16 a, F32x16 b) { return max(abs(a), abs(b)); }
#endif

}  // namespace
}  // namespace plimsoll::kernels
