// Operations that vector.h lacks, for elements that are kept as integers of 8 bits. Internal linkage, as there.
//   load_i8(p)                                    16 signed bytes
//   store_i8_32(p, a, b) store_u8_32(p, a, b)     of both: values in the range of 8 bits
//   nearest_int copy_sign(magnitude, sign)        nearest_int: to nearest even, below 2^31
//   mul_i shift_right_signed<k>                   mul_i: the lower halves of products
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE I32x16 load_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
// Four bytes of a, then four of b, in each 128 bits, to the 16 of a and the 16 of b.
PLIMSOLL_INLINE void store_packed_32(void* p, __m512i bytes) {
  const __m512i in_order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 13, 9, 5, 1, 12, 8, 4, 0);
  _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(_mm512_permutexvar_epi32(in_order, bytes)));
}
PLIMSOLL_INLINE void store_i8_32(int8_t* p, I32x16 a, I32x16 b) {
  const __m512i words = _mm512_packs_epi32(a.v, b.v);
  store_packed_32(p, _mm512_packs_epi16(words, words));
}
PLIMSOLL_INLINE void store_u8_32(uint8_t* p, I32x16 a, I32x16 b) {
  const __m512i words = _mm512_packus_epi32(a.v, b.v);
  store_packed_32(p, _mm512_packus_epi16(words, words));
}
PLIMSOLL_INLINE I32x16 nearest_int(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
PLIMSOLL_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  constexpr int kSecondWhereThird = 0xd8;  // z ? y : x
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude.v), _mm512_castps_si512(sign.v),
                                                        _mm512_set1_epi32(INT32_MIN), kSecondWhereThird))};
}
PLIMSOLL_INLINE I32x16 mul_i(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_right_signed(I32x16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

PLIMSOLL_INLINE I32x16 load_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
// Bytes of four registers, four of each in each 128 bits, in order.
PLIMSOLL_INLINE void store_packed_32(void* p, __m256i bytes) {
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(bytes, in_order));
}
PLIMSOLL_INLINE void store_i8_32(int8_t* p, I32x16 x, I32x16 y) {
  store_packed_32(p, _mm256_packs_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b)));
}
PLIMSOLL_INLINE void store_u8_32(uint8_t* p, I32x16 x, I32x16 y) {
  store_packed_32(p, _mm256_packus_epi16(_mm256_packus_epi32(x.a, x.b), _mm256_packus_epi32(y.a, y.b)));
}
PLIMSOLL_INLINE I32x16 nearest_int(F32x16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
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
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_right_signed(I32x16 x) {
  return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
}

#else

PLIMSOLL_LONG I32x16 load_i8(const int8_t* p) {
  int32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = p[i];
  I32x16 x;
  std::memcpy(&x, lanes, sizeof(x));
  return x;
}
PLIMSOLL_INLINE void store_u8_32(uint8_t* p, I32x16 a, I32x16 b) {
  store_u8(p, a);
  store_u8(p + 16, b);
}
PLIMSOLL_INLINE void store_i8_32(int8_t* p, I32x16 a, I32x16 b) { store_u8_32(reinterpret_cast<uint8_t*>(p), a, b); }
PLIMSOLL_INLINE I32x16 nearest_int(F32x16 a) { return to_int(round_even(a)); }
PLIMSOLL_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  return from_bits(or_i(and_i(bits(magnitude), set_i(INT32_MAX)), and_i(bits(sign), set_i(INT32_MIN))));
}
PLIMSOLL_INLINE I32x16 mul_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) {
    return reinterpret_cast<I32x4>(reinterpret_cast<U32x4>(a.v[i]) * reinterpret_cast<U32x4>(b.v[i]));
  });
}
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_right_signed(I32x16 a) {
  return groups<I32x16>([&](int i) { return a.v[i] >> kBits; });
}

#endif

}  // namespace
}  // namespace plimsoll::kernels
