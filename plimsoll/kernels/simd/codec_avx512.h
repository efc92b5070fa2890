// Encoding 64 values to FP8 in 16-bit lanes, at half the instructions of four times 16. Included by codec.h.
#pragma once

namespace plimsoll::kernels {
namespace {

// The upper halves of low's and high's words, low's in the even places; the last bit is set where anything is cut off
// (round to odd), so that a later rounding to nearest even is the only one.
PLIMSOLL_INLINE __m512i narrow_to_odd(F32x16 low, F32x16 high) {
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  const __m512i a = _mm512_castps_si512(low.v), b = _mm512_castps_si512(high.v);
  const __m512i kept =
      _mm512_ternarylogic_epi32(_mm512_srli_epi32(a, 16), b, _mm512_set1_epi32(INT32_C(-0x10000)), kOrAnd);
  const __m512i cut = _mm512_ternarylogic_epi32(_mm512_slli_epi32(b, 16), a, _mm512_set1_epi32(0xffff), kOrAnd);
  return _mm512_or_si512(kept, _mm512_min_epu16(cut, _mm512_set1_epi16(1)));
}

template <format::Format kFormat, format::Overflow kOverflow>
PLIMSOLL_INLINE void store_fp8_by_16(uint8_t* codes, const F32x16* x) {
  for (int k = 0; k < 4; ++k) store_u8(codes + 16 * k, encode_fp8<kFormat, kOverflow>(x[k]));
}

template <format::Format kFormat, format::Overflow kOverflow = format::Overflow::kSaturate>
PLIMSOLL_INLINE void store_fp8_64(uint8_t* codes, F32x16 x0, F32x16 x1, F32x16 x2, F32x16 x3) {
  using Layout = Fp8Layout<kFormat>;
  constexpr int kShift = 7 - Layout::kMantissaBits;
  constexpr int kBias = ((127 - Layout::kBias) << 7) - ((1 << (kShift - 1)) - 1);
  constexpr int kSmallest = (128 - Layout::kBias) << 7;  // the smallest normal value, as BF16
  constexpr int kLargest = (Layout::kLargest << kShift) + ((127 - Layout::kBias) << 7);
  // Saturation is a minimum here; everything else that is not zero or normal goes 16 by 16.
  constexpr int kLimit = kOverflow == format::Overflow::kSaturate ? 0x7f7f : kLargest;

  const __m512i v02 = narrow_to_odd(x0, x2), v13 = narrow_to_odd(x1, x3);
  const __m512i a02 = _mm512_and_si512(v02, _mm512_set1_epi16(0x7fff));
  const __m512i a13 = _mm512_and_si512(v13, _mm512_set1_epi16(0x7fff));
  const __m512i smallest = _mm512_set1_epi16(kSmallest), span = _mm512_set1_epi16(kLimit - kSmallest);
  const __mmask32 rare02 =
      _mm512_mask_cmpgt_epu16_mask(_mm512_test_epi16_mask(a02, a02), _mm512_sub_epi16(a02, smallest), span);
  const __mmask32 rare13 =
      _mm512_mask_cmpgt_epu16_mask(_mm512_test_epi16_mask(a13, a13), _mm512_sub_epi16(a13, smallest), span);
  if (__builtin_expect((rare02 | rare13) != 0, 0)) {
    const F32x16 x[4] = {x0, x1, x2, x3};
    return store_fp8_by_16<kFormat, kOverflow>(codes, x);
  }
  auto round = [](__m512i a) __attribute__((always_inline)) {
    a = _mm512_min_epu16(a, _mm512_set1_epi16(kLargest));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(a, kShift), _mm512_set1_epi16(1));
    return _mm512_srli_epi16(_mm512_subs_epu16(_mm512_add_epi16(a, odd), _mm512_set1_epi16(kBias)), kShift);
  };
  const __m512i magnitude = _mm512_or_si512(round(a02), _mm512_slli_epi16(round(a13), 8));
  const __m512i upper = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(v02, 8), v13);
  const __m512i code = _mm512_ternarylogic_epi32(magnitude, upper, _mm512_set1_epi8(-0x80), 0xf8);
  // Word l holds the codes of lane l of x0, x1, x2, x3: a transposition, first within 128 bits, then of dwords.
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi32(dwords, _mm512_shuffle_epi8(code, bytes)));
}

}  // namespace
}  // namespace plimsoll::kernels
