// FP8 codes four to a dword, as they lie along k in memory: moved as dwords, decoded last. The values are those of
// decode_fp8. Internal linkage, because ISA files use it: see simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/codec.h"

namespace plimsoll::kernels {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE __m512i every_byte(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

// The bytes of BF16 values: exponents are rebiased by an even number, so that a code's upper bits give the upper byte
// and its lower bits the lower byte. Codes whose exponent is all zeros, Inf and NaN ("rare") come from tables by their
// lower four bits.
template <format::Format kFormat>
struct Fp8Bytes;

template <>
struct Fp8Bytes<format::Format::kE4m3> {
  static constexpr int kUpperShift = 4, kUpperMask = 0x07, kUpperBias = (127 - 7) / 2, kLowerShift = 4,
                       kLowerMask = 0xf0;
  PLIMSOLL_INLINE __m128i rare_upper() {
    return _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0x7f);
  }
  PLIMSOLL_INLINE __m128i rare_lower() {
    return _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, -0x10);
  }
};

template <>
struct Fp8Bytes<format::Format::kE5m2> {
  static constexpr int kUpperShift = 3, kUpperMask = 0x0f, kUpperBias = (127 - 15) / 2, kLowerShift = 5,
                       kLowerMask = 0xe0;
  PLIMSOLL_INLINE __m128i rare_upper() {
    return _mm_setr_epi8(0, 0x37, 0x38, 0x38, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0x7f, 0x7f, 0x7f);
  }
  PLIMSOLL_INLINE __m128i rare_lower() {
    return _mm_setr_epi8(0, -0x80, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, -0x80, -0x20, -0x40, -0x20);
  }
};

// Each lane of `first` is the pair of BF16 values of bytes 0 and 1, of `second` that of bytes 2 and 3.
template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads_to_pairs(I32x16 codes, I32x16& first, I32x16& second) {
  using Layout = Fp8Layout<kFormat>;
  using Bytes = Fp8Bytes<kFormat>;
  constexpr int kSmallest = 1 << Layout::kMantissaBits;
  const __m512i magnitude = _mm512_and_si512(codes.v, every_byte(0x7f));
  const __mmask64 rare = _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(magnitude, every_byte(kSmallest)),
                                                every_byte(Layout::kLargest - kSmallest));
  __m512i upper = _mm512_and_si512(_mm512_srli_epi16(codes.v, Bytes::kUpperShift), every_byte(Bytes::kUpperMask));
  upper = _mm512_add_epi8(upper, every_byte(Bytes::kUpperBias));
  __m512i lower = _mm512_and_si512(_mm512_slli_epi16(codes.v, Bytes::kLowerShift), every_byte(Bytes::kLowerMask));
  upper = _mm512_mask_shuffle_epi8(upper, rare, _mm512_broadcast_i32x4(Bytes::rare_upper()), magnitude);
  lower = _mm512_mask_shuffle_epi8(lower, rare, _mm512_broadcast_i32x4(Bytes::rare_lower()), magnitude);
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  upper = _mm512_ternarylogic_epi32(upper, codes.v, every_byte(0x80), kOrAnd);
  const __m512 lanes01 = _mm512_castsi512_ps(_mm512_unpacklo_epi8(lower, upper));  // of four, lanes 0 and 1
  const __m512 lanes23 = _mm512_castsi512_ps(_mm512_unpackhi_epi8(lower, upper));
  first.v = _mm512_castps_si512(_mm512_shuffle_ps(lanes01, lanes23, 0x88));
  second.v = _mm512_castps_si512(_mm512_shuffle_ps(lanes01, lanes23, 0xdd));
}

PLIMSOLL_INLINE void pairs_to_values(const I32x16 (&pair)[2], F32x16 (&value)[4]) {
  const I32x16 upper = set_i(INT32_C(-0x10000));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    value[2 * i] = from_bits(shift_left<16>(pair[i]));
    value[2 * i + 1] = from_bits(and_i(pair[i], upper));
  }
}

// value[j] = byte j of each lane.
template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads(I32x16 codes, F32x16 (&value)[4]) {
  I32x16 pair[2];
  decode_quads_to_pairs<kFormat>(codes, pair[0], pair[1]);
  pairs_to_values(pair, value);
}

// Byte j of lane i of quad[q] = lines[(4 q + j) * stride + i]: 16 lines of 16 bytes.
PLIMSOLL_INLINE void gather_quads(const uint8_t* lines, int64_t stride, I32x16 (&quad)[4]) {
  auto line = [&](int i) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lines + i * stride));
  };
  __m512i every_fourth[4];  // lines j, 4 + j, 8 + j, 12 + j
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(line(j)), line(4 + j), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(line(8 + j)), line(12 + j), 1);
    every_fourth[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  const __m512i low01 = _mm512_unpacklo_epi8(every_fourth[0], every_fourth[1]);
  const __m512i high01 = _mm512_unpackhi_epi8(every_fourth[0], every_fourth[1]);
  const __m512i low23 = _mm512_unpacklo_epi8(every_fourth[2], every_fourth[3]);
  const __m512i high23 = _mm512_unpackhi_epi8(every_fourth[2], every_fourth[3]);
  const __m512i rows0 = _mm512_unpacklo_epi16(low01, low23), rows4 = _mm512_unpackhi_epi16(low01, low23);
  const __m512i rows8 = _mm512_unpacklo_epi16(high01, high23), rows12 = _mm512_unpackhi_epi16(high01, high23);
  // 128-bit part q of rows_ belongs to quad q: a transposition of 4 x 4 parts.
  const __m512i even0 = _mm512_shuffle_i32x4(rows0, rows4, 0x88), odd0 = _mm512_shuffle_i32x4(rows0, rows4, 0xdd);
  const __m512i even8 = _mm512_shuffle_i32x4(rows8, rows12, 0x88), odd8 = _mm512_shuffle_i32x4(rows8, rows12, 0xdd);
  quad[0].v = _mm512_shuffle_i32x4(even0, even8, 0x88);
  quad[2].v = _mm512_shuffle_i32x4(even0, even8, 0xdd);
  quad[1].v = _mm512_shuffle_i32x4(odd0, odd8, 0x88);
  quad[3].v = _mm512_shuffle_i32x4(odd0, odd8, 0xdd);
}

#else

template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads_apart(I32x16 codes, F32x16 (&value)[4]) {
  const I32x16 byte = set_i(0xff);
  value[0] = decode_fp8<kFormat>(and_i(codes, byte));
  value[1] = decode_fp8<kFormat>(and_i(shift_right<8>(codes), byte));
  value[2] = decode_fp8<kFormat>(and_i(shift_right<16>(codes), byte));
  value[3] = decode_fp8<kFormat>(shift_right<24>(codes));
}

#if defined(__AVX2__)

// Bytes at the top of a dword are shifted to where FP32 has exponent and mantissa, the sign being repeated; an exact
// multiplication mends the exponent, of subnormal numbers, too. Only Inf and NaN are not what they were.
template <format::Format kFormat>
PLIMSOLL_INLINE bool any_not_finite(I32x16 codes) {
  const __m256i exponent = _mm256_set1_epi8(Fp8Layout<kFormat>::kHasInf ? 0x7c : 0x7f);
  const __m256i a = _mm256_cmpeq_epi8(_mm256_and_si256(codes.a, exponent), exponent);
  const __m256i b = _mm256_cmpeq_epi8(_mm256_and_si256(codes.b, exponent), exponent);
  return _mm256_movemask_epi8(_mm256_or_si256(a, b)) != 0;
}

template <format::Format kFormat, int kUp>
PLIMSOLL_INLINE F32x16 decode_finite(I32x16 codes) {
  using Layout = Fp8Layout<kFormat>;
  constexpr int kMantissa = Layout::kMantissaBits, kDown = kMantissa + 1;
  constexpr int32_t kKept = static_cast<int32_t>(0x80000000u | 0x7fu << (23 - kMantissa));
  const __m256i kept = _mm256_set1_epi32(kKept);
  const __m256 factor = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 127 - Layout::kBias) << 23));
  const auto part = [&](__m256i x) __attribute__((always_inline)) {
    const __m256i bits = _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(x, kUp), kDown), kept);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), factor);
  };
  return {part(codes.a), part(codes.b)};
}

template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads(I32x16 codes, F32x16 (&value)[4]) {
  if (__builtin_expect(any_not_finite<kFormat>(codes), 0)) return decode_quads_apart<kFormat>(codes, value);
  value[0] = decode_finite<kFormat, 24>(codes);
  value[1] = decode_finite<kFormat, 16>(codes);
  value[2] = decode_finite<kFormat, 8>(codes);
  value[3] = decode_finite<kFormat, 0>(codes);
}

#else

template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads(I32x16 codes, F32x16 (&value)[4]) {
  decode_quads_apart<kFormat>(codes, value);
}

#endif

template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads_to_pairs(I32x16 codes, I32x16& first, I32x16& second) {
  F32x16 value[4];
  decode_quads<kFormat>(codes, value);
  first = or_i(shift_right<16>(bits(value[0])), bits(value[1]));
  second = or_i(shift_right<16>(bits(value[2])), bits(value[3]));
}

PLIMSOLL_INLINE void gather_quads(const uint8_t* lines, int64_t stride, I32x16 (&quad)[4]) {
  for (int q = 0; q < 4; ++q) {
    const uint8_t* line = lines + 4 * q * stride;
    const I32x16 low = or_i(load_u8(line), shift_left<8>(load_u8(line + stride)));
    const I32x16 high = or_i(load_u8(line + 2 * stride), shift_left<8>(load_u8(line + 3 * stride)));
    quad[q] = or_i(low, shift_left<16>(high));
  }
}

#endif

}  // namespace
}  // namespace plimsoll::kernels
