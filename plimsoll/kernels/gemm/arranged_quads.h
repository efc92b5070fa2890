// E4M3 codes as a packed B keeps them. With AVX2 and AVX-512 they are arranged so that decoding takes half the
// instructions: a byte is the code with its halves exchanged, e0 m2 m1 m0 s e3 e2 e1, so that the upper half is a BF16
// value's lower byte and the lower half names its upper byte; in 128 bits the pairs of k that become one dword lie
// together; NaN takes the place of -0, which becomes +0, so that one test finds all codes whose exponent is not that of
// a normal number. Elsewhere they are as they came. Internal linkage, because ISA files use it: see simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/fp8_quads.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE I32x16 arrange_quads(I32x16 codes) {
  const __m512i pairs_together =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __mmask64 nan = _mm512_cmpeq_epi8_mask(_mm512_and_si512(codes.v, every_byte(0x7f)), every_byte(0x7f));
  const __mmask64 not_negative_zero = _mm512_cmpneq_epi8_mask(codes.v, every_byte(0x80));
  __m512i x = _mm512_maskz_mov_epi8(not_negative_zero, codes.v);
  x = _mm512_mask_mov_epi8(x, nan, every_byte(0x80));
  constexpr int kSelect = 0xca;  // a ? b : c, bit by bit
  x = _mm512_ternarylogic_epi32(every_byte(0xf0), _mm512_slli_epi16(x, 4), _mm512_srli_epi16(x, 4), kSelect);
  return {_mm512_shuffle_epi8(x, pairs_together)};
}

PLIMSOLL_INLINE bool any_rare(I32x16 low, I32x16 high) {
  const __m512i exponent = every_byte(0x87);
  return _kortestz_mask64_u8(_mm512_testn_epi8_mask(low.v, exponent), _mm512_testn_epi8_mask(high.v, exponent)) == 0;
}

// As decode_quads_to_pairs. kRare: there may be codes of zero, subnormal numbers or NaN.
template <bool kRare>
PLIMSOLL_INLINE void arranged_to_pairs(I32x16 arranged, I32x16& first, I32x16& second) {
  // By s e3 e2 e1: the sign, and (2 e + 120) / 2 for BF16's exponent.
  const __m512i upper_bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(
      0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43, -0x44, -0x43, -0x42, -0x41, -0x40, -0x3f, -0x3e, -0x3d));
  __m512i upper = _mm512_shuffle_epi8(upper_bytes, _mm512_and_si512(arranged.v, every_byte(0x0f)));
  __m512i lower = _mm512_and_si512(arranged.v, every_byte(0xf0));
  if constexpr (kRare) {
    // By s m2 m1 m0: m 2^-9, and NaN for -0.
    const __m512i rare_upper = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x7f,
                                                                    -0x45, -0x45, -0x45, -0x44, -0x44, -0x44, -0x44));
    const __m512i rare_lower = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60, -0x10, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60));
    const __mmask64 rare = _mm512_testn_epi8_mask(arranged.v, every_byte(0x87));
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const __m512i mantissa = _mm512_and_si512(_mm512_srli_epi16(arranged.v, 4), every_byte(0x07));
    const __m512i index = _mm512_ternarylogic_epi32(mantissa, arranged.v, every_byte(0x08), kOrAnd);
    upper = _mm512_mask_shuffle_epi8(upper, rare, rare_upper, index);
    lower = _mm512_mask_shuffle_epi8(lower, rare, rare_lower, index);
  }
  first.v = _mm512_unpacklo_epi8(lower, upper);
  second.v = _mm512_unpackhi_epi8(lower, upper);
}

// Two vectors, so that one branch serves 128 codes: in weights with a scale for each row it is all but never taken.
PLIMSOLL_INLINE void decode_arranged(I32x16 low, I32x16 high, I32x16 (&low_pairs)[2], I32x16 (&high_pairs)[2]) {
  if (__builtin_expect(any_rare(low, high), 0)) {
    arranged_to_pairs<true>(low, low_pairs[0], low_pairs[1]);
    arranged_to_pairs<true>(high, high_pairs[0], high_pairs[1]);
  } else {
    arranged_to_pairs<false>(low, low_pairs[0], low_pairs[1]);
    arranged_to_pairs<false>(high, high_pairs[0], high_pairs[1]);
  }
}

// value[j] = byte j of each lane, as decode_quads.
PLIMSOLL_INLINE void decode_arranged(I32x16 low, I32x16 high, F32x16 (&low_value)[4], F32x16 (&high_value)[4]) {
  I32x16 low_pairs[2], high_pairs[2];
  decode_arranged(low, high, low_pairs, high_pairs);
  pairs_to_values(low_pairs, low_value);
  pairs_to_values(high_pairs, high_value);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

PLIMSOLL_INLINE __m256i arrange_quads(__m256i codes) {
  const auto every_byte = [](int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); };
  const __m256i pairs_together =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i nan = _mm256_cmpeq_epi8(_mm256_and_si256(codes, every_byte(0x7f)), every_byte(0x7f));
  __m256i x = _mm256_andnot_si256(_mm256_cmpeq_epi8(codes, every_byte(0x80)), codes);
  x = _mm256_blendv_epi8(x, every_byte(0x80), nan);
  x = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(x, 4), every_byte(0xf0)),
                      _mm256_and_si256(_mm256_srli_epi16(x, 4), every_byte(0x0f)));
  return _mm256_shuffle_epi8(x, pairs_together);
}
PLIMSOLL_INLINE I32x16 arrange_quads(I32x16 codes) { return {arrange_quads(codes.a), arrange_quads(codes.b)}; }

// The bits of the exponents, all zeros where a code is none of a normal number.
PLIMSOLL_INLINE __m256i exponents_of_arranged(__m256i arranged) {
  return _mm256_and_si256(arranged, _mm256_set1_epi8(static_cast<char>(0x87)));
}
PLIMSOLL_INLINE bool has_zero_byte(__m256i x) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_setzero_si256())) != 0;
}
PLIMSOLL_INLINE bool any_rare(I32x16 low, I32x16 high) {
  const auto least = [](I32x16 x) __attribute__((always_inline)) {
    return _mm256_min_epu8(exponents_of_arranged(x.a), exponents_of_arranged(x.b));
  };
  return has_zero_byte(_mm256_min_epu8(least(low), least(high)));
}

struct Pairs8 {
  __m256i first, second;
};
// As decode_quads_to_pairs, of 8 lanes. kRare: there may be codes of zero, subnormal numbers or NaN.
template <bool kRare>
PLIMSOLL_INLINE Pairs8 arranged_to_pairs(__m256i arranged) {
  // By s e3 e2 e1: the sign, and (2 e + 120) / 2 for BF16's exponent.
  const __m256i upper_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43, -0x44, -0x43, -0x42, -0x41, -0x40, -0x3f, -0x3e, -0x3d));
  const __m256i upper_half = _mm256_set1_epi8(static_cast<char>(0xf0));
  __m256i upper = _mm256_shuffle_epi8(upper_bytes, _mm256_and_si256(arranged, _mm256_set1_epi8(0x0f)));
  __m256i lower = _mm256_and_si256(arranged, upper_half);
  if constexpr (kRare) {
    // By s m2 m1 m0: m 2^-9, and NaN for -0.
    const __m256i rare_upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x7f, -0x45, -0x45, -0x45, -0x44, -0x44, -0x44, -0x44));
    const __m256i rare_lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60, -0x10, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60));
    const __m256i rare = _mm256_cmpeq_epi8(exponents_of_arranged(arranged), _mm256_setzero_si256());
    const __m256i mantissa = _mm256_and_si256(_mm256_srli_epi16(arranged, 4), _mm256_set1_epi8(0x07));
    const __m256i index = _mm256_or_si256(mantissa, _mm256_and_si256(arranged, _mm256_set1_epi8(0x08)));
    upper = _mm256_blendv_epi8(upper, _mm256_shuffle_epi8(rare_upper, index), rare);
    lower = _mm256_blendv_epi8(lower, _mm256_shuffle_epi8(rare_lower, index), rare);
  }
  return {_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)};
}

// Two vectors, so that one branch serves 128 codes: in weights with a scale for each row it is all but never taken.
template <bool kRare>
PLIMSOLL_INLINE void decode_arranged_as(I32x16 low, I32x16 high, I32x16 (&low_pairs)[2], I32x16 (&high_pairs)[2]) {
  const Pairs8 a = arranged_to_pairs<kRare>(low.a), b = arranged_to_pairs<kRare>(low.b);
  const Pairs8 c = arranged_to_pairs<kRare>(high.a), d = arranged_to_pairs<kRare>(high.b);
  low_pairs[0] = {a.first, b.first};
  low_pairs[1] = {a.second, b.second};
  high_pairs[0] = {c.first, d.first};
  high_pairs[1] = {c.second, d.second};
}
PLIMSOLL_INLINE void decode_arranged(I32x16 low, I32x16 high, I32x16 (&low_pairs)[2], I32x16 (&high_pairs)[2]) {
  if (__builtin_expect(any_rare(low, high), 0)) {
    decode_arranged_as<true>(low, high, low_pairs, high_pairs);
  } else {
    decode_arranged_as<false>(low, high, low_pairs, high_pairs);
  }
}

// value[j] = byte j of each lane, as decode_quads.
PLIMSOLL_INLINE void decode_arranged(I32x16 low, I32x16 high, F32x16 (&low_value)[4], F32x16 (&high_value)[4]) {
  const I32x16 upper = set_i(INT32_C(-0x10000));
  I32x16 low_pairs[2], high_pairs[2];
  decode_arranged(low, high, low_pairs, high_pairs);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    low_value[2 * i] = from_bits(shift_left<16>(low_pairs[i]));
    low_value[2 * i + 1] = from_bits(and_i(low_pairs[i], upper));
    high_value[2 * i] = from_bits(shift_left<16>(high_pairs[i]));
    high_value[2 * i + 1] = from_bits(and_i(high_pairs[i], upper));
  }
}

#else

PLIMSOLL_INLINE I32x16 arrange_quads(I32x16 codes) { return codes; }

PLIMSOLL_INLINE void decode_arranged(I32x16 low, I32x16 high, I32x16 (&low_pairs)[2], I32x16 (&high_pairs)[2]) {
  decode_quads_to_pairs<format::Format::kE4m3>(low, low_pairs[0], low_pairs[1]);
  decode_quads_to_pairs<format::Format::kE4m3>(high, high_pairs[0], high_pairs[1]);
}

PLIMSOLL_INLINE void decode_arranged(I32x16 low, I32x16 high, F32x16 (&low_value)[4], F32x16 (&high_value)[4]) {
  decode_quads<format::Format::kE4m3>(low, low_value);
  decode_quads<format::Format::kE4m3>(high, high_value);
}

#endif

}  // namespace
}  // namespace plimsoll::kernels
