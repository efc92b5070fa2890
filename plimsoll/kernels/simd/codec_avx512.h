// Encoding 64 values to FP8: rounded as FP32, packed in 16-bit lanes. Included by codec.h.
#pragma once

namespace plimsoll::kernels {
namespace {

// What the 16-bit lanes hold: sign, exponent and mantissa of a BF16 value, the exponent raised so that its low bits are
// those of the code: code = sign | (word >> kShift) & 0x7f for zero and normal codes. kShift bits lie below the code.
template <format::Format kFormat>
struct Fp8Words {
  using Layout = Fp8Layout<kFormat>;
  static constexpr int kShift = 7 - Layout::kMantissaBits;
  static constexpr float kRaise = static_cast<float>(1 << (Layout::kBias + 1));
  static constexpr int kZeroExponent = 128 << 7;
  static constexpr int kSmallest = kZeroExponent + (1 << 7);  // the smallest normal code
  static constexpr int kLargest = kZeroExponent + (Layout::kLargest << kShift);
};

// kRaise * x, rounded to the mantissa of kFormat as if there were no smallest exponent; nearest even. Inf and NaN, and
// what overflows, give Inf or NaN.
// 2^s x has the unit in the last place to which x is to be rounded (s = 23 - kMantissaBits): (1 - 2^s) x, rounded,
// plus 2^s x is x rounded there. Where x is close to a power of two from above the unit is half as large, which makes
// no difference. An x in the middle ends in a zero bit, so that even is even in x, too.
template <format::Format kFormat>
PLIMSOLL_INLINE __m512i round_to_code(F32x16 x) {
  constexpr float kUnit = static_cast<float>(1 << (23 - Fp8Layout<kFormat>::kMantissaBits));
  constexpr float kRaise = Fp8Words<kFormat>::kRaise;
  const F32x16 rounded = fma(x, set(kRaise * kUnit), mul(x, set(kRaise * (1.0f - kUnit))));
  constexpr int kOrAnd = 0xf8;                        // a | (b & c)
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);  // of -0, which the sum loses
  return _mm512_ternarylogic_epi32(_mm512_castps_si512(rounded.v), _mm512_castps_si512(x.v), sign, kOrAnd);
}

// The upper halves of low's and high's words, low's in the even places.
PLIMSOLL_INLINE __m512i upper_halves(__m512i low, __m512i high) {
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, _mm512_set1_epi32(INT32_C(-0x10000)), kOrAnd);
}

// Which of two magnitudes hold, in either, anything but zeros and what lies in [smallest, largest].
struct Outside {
  __mmask32 below, above;
  __attribute__((always_inline)) bool any() const { return !_kortestz_mask32_u8(below, above); }
};
PLIMSOLL_INLINE Outside outside(__m512i a, __m512i b, int smallest, int largest) {
  const auto word = [](int x) { return _mm512_set1_epi16(static_cast<short>(x)); };
  const __m512i least = _mm512_min_epu16(_mm512_add_epi16(a, word(-1)), _mm512_add_epi16(b, word(-1)));  // 0 is last
  return {_mm512_cmplt_epu16_mask(least, word(smallest - 1)),
          _mm512_cmpgt_epu16_mask(_mm512_max_epu16(a, b), word(largest))};
}

// `magnitude` with subnormal codes where it lies below the normal ones; low and high are what it was made of.
template <format::Format kFormat>
PLIMSOLL_INLINE __m512i with_subnormals(__m512i magnitude, F32x16 low, F32x16 high) {
  // A float whose last mantissa bit is worth one subnormal: the sum holds the code in its low bits.
  const F32x16 grid = from_bits(set_i(kGridBits<kFormat>));
  const __m512i low_code = bits(add(abs(low), grid)).v, high_code = bits(add(abs(high), grid)).v;
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  const __m512i codes =
      _mm512_ternarylogic_epi32(_mm512_slli_epi32(high_code, 16), low_code, _mm512_set1_epi32(0xffff), kOrAnd);
  const __mmask32 below = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(Fp8Words<kFormat>::kSmallest));
  return _mm512_mask_slli_epi16(magnitude, below, codes, Fp8Words<kFormat>::kShift);
}

// Codes of the words `even` in the even bytes, of `odd` in the odd ones; magnitudes without signs beside them.
template <format::Format kFormat>
PLIMSOLL_INLINE __m512i join_codes(__m512i even, __m512i even_magnitude, __m512i odd, __m512i odd_magnitude) {
  using Words = Fp8Words<kFormat>;
  constexpr int kSelect = 0xe4;  // c ? a : b
  const __m512i largest = _mm512_set1_epi16(Words::kLargest | ((1 << Words::kShift) - 1));
  const __m512i even_bytes = _mm512_set1_epi16(0xff), sign = _mm512_set1_epi8(-0x80);
  const __m512i low = _mm512_srli_epi16(_mm512_min_epu16(even_magnitude, largest), Words::kShift);
  const __m512i high = _mm512_slli_epi16(_mm512_min_epu16(odd_magnitude, largest), 8 - Words::kShift);
  const __m512i upper = _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, even_bytes, kSelect);
  return _mm512_ternarylogic_epi32(upper, _mm512_ternarylogic_epi32(low, high, even_bytes, kSelect), sign, kSelect);
}

// Word l holds the codes of lane l of x0, x1, x2, x3: a transposition, first within 128 bits, then of dwords.
PLIMSOLL_INLINE void store_in_order(uint8_t* codes, __m512i code) {
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi32(dwords, _mm512_shuffle_epi8(code, bytes)));
}
// 16-bit lane l holds codes l and l + 32: even bytes first, within 128 bits, then of quadwords.
PLIMSOLL_INLINE void store_pairs(uint8_t* codes, __m512i code) {
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i quads = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi64(quads, _mm512_shuffle_epi8(code, bytes)));
}

template <format::Format kFormat, format::Overflow kOverflow = format::Overflow::kSaturate,
          Order kOrder = Order::kInOrder>
PLIMSOLL_INLINE void store_fp8_64(uint8_t* codes, F32x16 x0, F32x16 x1, F32x16 x2, F32x16 x3) {
  using Words = Fp8Words<kFormat>;
  // Saturation is a minimum; what is not finite goes 16 by 16.
  constexpr int kLargest = kOverflow == format::Overflow::kSaturate ? 0x7f7f : Words::kLargest;
  constexpr bool kPaired = kOrder == Order::kEvenOdd;
  // What stands in the even bytes of codes, and in the odd ones.
  const F32x16 even_low = x0, even_high = kPaired ? x1 : x2, odd_low = kPaired ? x2 : x1, odd_high = x3;
  const __m512i even = upper_halves(round_to_code<kFormat>(even_low), round_to_code<kFormat>(even_high));
  const __m512i odd = upper_halves(round_to_code<kFormat>(odd_low), round_to_code<kFormat>(odd_high));
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i a = _mm512_and_si512(even, magnitude), b = _mm512_and_si512(odd, magnitude);
  if (const Outside rare = outside(a, b, Words::kSmallest, kLargest); __builtin_expect(rare.any(), 0)) {
    if (rare.above != 0) return store_fp8_by_16<kFormat, kOverflow, kOrder>(codes, x0, x1, x2, x3);
    a = with_subnormals<kFormat>(a, even_low, even_high);
    b = with_subnormals<kFormat>(b, odd_low, odd_high);
  }
  const __m512i code = join_codes<kFormat>(even, a, odd, b);
  kPaired ? store_pairs(codes, code) : store_in_order(codes, code);
}

}  // namespace
}  // namespace plimsoll::kernels
