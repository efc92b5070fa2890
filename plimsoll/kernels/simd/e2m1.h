// E2M1 encode and decode of 16 lanes; the same codes as format/e2m1.h, bit for bit. Internal linkage, as in
// simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// mask ? yes : no, bit by bit.
PLIMSOLL_INLINE I32x16 select_bits(int32_t mask, I32x16 yes, I32x16 no) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  constexpr int kSelect = 0xca;  // a ? b : c
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi32(mask), yes.v, no.v, kSelect)};
#else
  return or_i(and_i(yes, set_i(mask)), and_i(no, set_i(~mask)));
#endif
}

// min(|x|, 6); 6 for NaN.
PLIMSOLL_INLINE F32x16 e2m1_magnitude(F32x16 x) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  constexpr int kSmallerMagnitudeWithoutSign = 0b1010;
  return {_mm512_range_ps(x.v, _mm512_set1_ps(6.0f), kSmallerMagnitudeWithoutSign)};
#else
  return min(abs(x), set(6.0f));
#endif
}

// The power of two at or below a magnitude in 0 .. 6, but at least 1: codes from there to its double are half of it
// apart.
PLIMSOLL_INLINE I32x16 e2m1_power(F32x16 magnitude) {
  return max_i(and_i(bits(magnitude), set_i(0x7f800000)), set_i(0x3f800000));
}

// A sum that holds a magnitude, rounded to the nearest code (ties to even): 2^22 + 3 times its power of two, whose last
// place is the codes' distance, plus the magnitude. The mantissa's low bits are 6 + the magnitude in these units, 0 .. 4.
struct E2m1Sum {
  F32x16 sum, base;
};
PLIMSOLL_INLINE E2m1Sum e2m1_sum(F32x16 magnitude) {
  const F32x16 base = mul(from_bits(e2m1_power(magnitude)), set(4194307.0f));
  return {add(base, magnitude), base};
}

// The magnitude of the nearest code.
PLIMSOLL_INLINE F32x16 round_to_e2m1(F32x16 magnitude) {
  const E2m1Sum rounded = e2m1_sum(magnitude);
  return sub(rounded.sum, rounded.base);
}

// Codes without sign in the low three bits, anything above. 2 (exponent + 149) + 6 + units = 8 (..) + code.
PLIMSOLL_INLINE I32x16 e2m1_nearest(F32x16 magnitude) {
#if defined(__FMA__)
  const I32x16 sum = bits(fma(from_bits(e2m1_power(magnitude)), set(4194307.0f), magnitude));  // the product is exact
#else
  const I32x16 sum = bits(e2m1_sum(magnitude).sum);
#endif
  return add_i(sum, shift_right<22>(sum));
}

// The same, rounded as format::E2m1::encode_stochastic_16 does; random: 0 .. 65535. The sum's last place is 2^-16 of the
// codes' distance: above 16 bits stand 2^7 (exponent + 133) + 6 + units.
PLIMSOLL_INLINE I32x16 e2m1_stochastic(F32x16 magnitude, I32x16 random) {
  const F32x16 power = from_bits(e2m1_power(magnitude)), base = set(67.0f);  // 2^6 + 3
#if defined(__FMA__)
  const I32x16 sum = bits(fma(power, base, magnitude));  // the product is exact
#else
  const I32x16 sum = bits(add(mul(power, base), magnitude));
#endif
  const I32x16 rounded = add_i(sum, random);
  return add_i(shift_right<16>(rounded), shift_right<22>(rounded));
}

// Codes of x from its magnitude's: the sign of x above three bits.
PLIMSOLL_INLINE I32x16 e2m1_code(F32x16 x, I32x16 magnitude_code) {
  return select_bits(7, magnitude_code, shift_right<28>(bits(x)));
}

// Values of the codes in the low four bits; what lies above is ignored.
PLIMSOLL_INLINE F32x16 decode_e2m1(I32x16 code) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  //
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return {_mm512_permutexvar_ps(code.v, values)};
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i sign = _mm256_set1_epi32(INT32_MIN);
  const auto decode = [=](__m256i x) __attribute__((always_inline)) {
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(values, x),
                         _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(x, 28), sign)));
  };
  return {decode(code.a), decode(code.b)};
#else
  const I32x16 magnitude = and_i(code, set_i(7)), sign = shift_left<28>(and_i(code, set_i(8)));
  const I32x16 normal = add_i(shift_left<22>(magnitude), set_i(126 << 23));
  const I32x16 tiny = bits(mul(to_float(magnitude), set(0.5f)));
  return from_bits(or_i(select_i(less_i(magnitude, set_i(2)), tiny, normal), sign));
#endif
}

}  // namespace
}  // namespace plimsoll::kernels
