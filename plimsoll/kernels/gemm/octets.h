// E2M1 codes eight to a dword, as they lie along k in memory, and the scales of their blocks, to the values that are
// multiplied: code * block scale, exact in BF16. Internal linkage, because ISA files use it: see simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/decode_dword.h"
#include "plimsoll/kernels/simd/e2m1.h"

namespace plimsoll::kernels {
namespace {

// E4M3 in half the instructions of decode_fp8 where there are no masks: an exact multiplication mends the exponent, of
// subnormal numbers, too.
PLIMSOLL_INLINE F32x16 decode_e4m3_scales(I32x16 code) {
#if defined(__AVX512F__)
  return decode_fp8<Format::kE4m3>(code);
#else
  const I32x16 magnitude = and_i(code, set_i(0x7f)), sign = shift_left<24>(xor_i(code, magnitude));
  const F32x16 value = mul(from_bits(or_i(shift_left<20>(magnitude), sign)), set(0x1p120f));
  return select(less_i(magnitude, set_i(0x7f)), value, from_bits(set_i(0x7ff00000)));
#endif
}

// Scales of 16 rows.
PLIMSOLL_INLINE F32x16 decode_block_scales(I32x16 code, Format format) {
  if (format == Format::kE4m3) return decode_e4m3_scales(code);
  const I32x16 normal = select_i(less_i(set_i(0), code), shift_left<23>(code), set_i(0x400000));  // 2^-127
  return from_bits(select_i(less_i(code, set_i(255)), normal, set_i(0x7fc00000)));
}

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)

// Codes as AVX2 decodes them: the lower halves of a dword's bytes are its first four codes, the upper halves the others;
// and in 128 bits, four rows, bytes 0 and 1 of each lie together, then bytes 2 and 3, so that bytes that are looked up
// become pairs of BF16 values, in order along k, by unpacking.
PLIMSOLL_INLINE I32x16 spread_nibbles(I32x16 low_half) {
  const I32x16 bytes = and_i(or_i(low_half, shift_left<8>(low_half)), set_i(0x00ff00ff));
  return and_i(or_i(bytes, shift_left<4>(bytes)), set_i(0x0f0f0f0f));
}
PLIMSOLL_INLINE I32x16 arrange_octets(I32x16 x) {
  const __m256i pairs_together =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const I32x16 first = spread_nibbles(and_i(x, set_i(0xffff))), last = spread_nibbles(shift_right<16>(x));
  const I32x16 halves = or_i(first, shift_left<4>(last));
  return {_mm256_shuffle_epi8(halves.a, pairs_together), _mm256_shuffle_epi8(halves.b, pairs_together)};
}

// Four codes of each of eight arranged rows, kHalf 0 or 1 of their octets, as pairs of BF16 values.
template <int kHalf>
PLIMSOLL_INLINE void decode_half_octets(__m256i x, __m256i (&pairs)[2]) {
  // Upper and lower bytes of BF16 values, by code.
  const __m256i upper_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i lower_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
  const __m256i code = _mm256_and_si256(kHalf == 0 ? x : _mm256_srli_epi32(x, 4), _mm256_set1_epi8(0x0f));
  const __m256i upper = _mm256_shuffle_epi8(upper_bytes, code), lower = _mm256_shuffle_epi8(lower_bytes, code);
  pairs[0] = _mm256_unpacklo_epi8(lower, upper);
  pairs[1] = _mm256_unpackhi_epi8(lower, upper);
}

// Value kIndex of the pairs, times the rows' scales.
template <int kIndex>
PLIMSOLL_INLINE __m256 value_of_pairs(const __m256i (&pairs)[2], __m256 scale) {
  const __m256i pair = pairs[kIndex / 2];
  const __m256i value =
      kIndex % 2 == 0 ? _mm256_slli_epi32(pair, 16) : _mm256_and_si256(pair, _mm256_set1_epi32(INT32_C(-0x10000)));
  return _mm256_mul_ps(_mm256_castsi256_ps(value), scale);
}

PLIMSOLL_INLINE void decode_arranged_octets(__m256i x, __m256 scale, __m256 (&value)[8]) {
  __m256i first[2], last[2];
  decode_half_octets<0>(x, first);
  decode_half_octets<1>(x, last);
  value[0] = value_of_pairs<0>(first, scale);
  value[1] = value_of_pairs<1>(first, scale);
  value[2] = value_of_pairs<2>(first, scale);
  value[3] = value_of_pairs<3>(first, scale);
  value[4] = value_of_pairs<0>(last, scale);
  value[5] = value_of_pairs<1>(last, scale);
  value[6] = value_of_pairs<2>(last, scale);
  value[7] = value_of_pairs<3>(last, scale);
}
// value[j] = code j of each of 16 arranged rows, times the row's scale.
PLIMSOLL_INLINE void decode_arranged_octets(I32x16 x, F32x16 scale, F32x16 (&value)[8]) {
  __m256 low[8], high[8];
  decode_arranged_octets(x.a, scale.a, low);
  decode_arranged_octets(x.b, scale.b, high);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) value[j] = {low[j], high[j]};
}

#else

PLIMSOLL_INLINE I32x16 arrange_octets(I32x16 x) { return x; }

PLIMSOLL_INLINE void decode_arranged_octets(I32x16 x, F32x16 scale, F32x16 (&value)[8]) {
  value[0] = mul(decode_e2m1(x), scale);
  value[1] = mul(decode_e2m1(shift_right<4>(x)), scale);
  value[2] = mul(decode_e2m1(shift_right<8>(x)), scale);
  value[3] = mul(decode_e2m1(shift_right<12>(x)), scale);
  value[4] = mul(decode_e2m1(shift_right<16>(x)), scale);
  value[5] = mul(decode_e2m1(shift_right<20>(x)), scale);
  value[6] = mul(decode_e2m1(shift_right<24>(x)), scale);
  value[7] = mul(decode_e2m1(shift_right<28>(x)), scale);
}

#endif

// The dwords of kind kTo of an octet.
template <Dword kTo>
PLIMSOLL_INLINE void decode_octet(I32x16 arranged, F32x16 scale, I32x16 (&decoded)[8 / depth_of(kTo)]) {
  F32x16 value[8];
  decode_arranged_octets(arranged, scale, value);
  if constexpr (kTo == Dword::kBf16Pair) {
    for (int i = 0; i < 4; ++i) decoded[i] = join_pair(value[2 * i], value[2 * i + 1]);
  } else {
    for (int i = 0; i < 8; ++i) decoded[i] = bits(value[i]);
  }
}

// Octet of k in a panel of B, whose groups gemm_isa.h describes; k is a multiple of 8.
template <Dword kStored>
PLIMSOLL_INLINE const uint32_t* octet_at(const uint32_t* panel, int64_t k) {
  const int64_t group = k / kGroupDepth, octet = k % kGroupDepth / 8;
  return panel + group * group_dwords(kStored) + scale_dwords(kStored) + octet * kBPitch;
}

// Scales of columns `column` to `column` + 15 in the block of k.
template <Dword kStored>
PLIMSOLL_INLINE F32x16 scales_at(const uint32_t* panel, int64_t k, int64_t column) {
  constexpr Format kScaleFormat = kStored == Dword::kNvfp4Octet ? Format::kE4m3 : Format::kE8m0;
  const int64_t group = k / kGroupDepth, block = k % kGroupDepth / octet_block(kStored);
  const auto* codes = reinterpret_cast<const uint8_t*>(panel + group * group_dwords(kStored));
  return decode_block_scales(load_u8(codes + block * kBPitch + column), kScaleFormat);
}

}  // namespace
}  // namespace plimsoll::kernels
