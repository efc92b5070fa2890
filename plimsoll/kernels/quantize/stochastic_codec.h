// format::E4m3::encode_stochastic and E5m2's on 16 lanes, bit for bit. Internal linkage, as in simd/vector.h.
#pragma once

#include "plimsoll/kernels/simd/codec.h"

namespace plimsoll::kernels {
namespace {

PLIMSOLL_INLINE Mask16 less_unsigned(I32x16 a, I32x16 b) {
  const I32x16 top = set_i(INT32_MIN);
  return less_i(xor_i(a, top), xor_i(b, top));
}

// Codes in the low byte of each lane. random: one word per lane; the magnitude goes up if it is below the fraction, in
// units of 2^-32.
template <format::Format kFormat, format::Overflow kOverflow>
PLIMSOLL_INLINE I32x16 encode_fp8_stochastic(F32x16 x, I32x16 random) {
  using Layout = Fp8Layout<kFormat>;
  constexpr int kShift = 23 - Layout::kMantissaBits;
  constexpr int32_t kMinNormalBits = (128 - Layout::kBias) << 23;
  constexpr int32_t kInverseSubnormalBits = (126 + Layout::kBias + Layout::kMantissaBits) << 23;
  const I32x16 magnitude = and_i(bits(x), set_i(0x7fffffff));
  const I32x16 sign = and_i(shift_right<24>(bits(x)), set_i(0x80));

  const I32x16 normal = sub_i(shift_right<kShift>(magnitude), set_i((127 - Layout::kBias) << Layout::kMantissaBits));
  const I32x16 normal_fraction = shift_left<32 - kShift>(magnitude);

  // Below the smallest normal: count in smallest subnormals, exactly, and peel the fraction off sixteen bits at a time.
  const Mask16 is_tiny = less_i(magnitude, set_i(kMinNormalBits));
  const F32x16 tiny_magnitude = from_bits(select_i(is_tiny, magnitude, set_i(0)));
  const F32x16 count = mul(tiny_magnitude, from_bits(set_i(kInverseSubnormalBits)));
  const I32x16 tiny = to_int(count);
  const F32x16 rest = mul(sub(count, to_float(tiny)), set(65536.0f));
  const I32x16 high = to_int(rest);
  const I32x16 low = to_int(mul(sub(rest, to_float(high)), set(65536.0f)));
  const I32x16 tiny_fraction = or_i(shift_left<16>(high), low);

  const I32x16 fraction = select_i(is_tiny, tiny_fraction, normal_fraction);
  const I32x16 up = select_i(less_unsigned(random, fraction), set_i(1), set_i(0));
  const I32x16 code = add_i(select_i(is_tiny, tiny, normal), up);
  // NaN, Inf and what lies beyond the largest code become what nearest-even rounding makes of them.
  const Mask16 beyond = less_i(set_i(Layout::kLargest), code);
  if (any(beyond)) {
    const F32x16 far = from_bits(max_i(magnitude, set_i(0x4f800000)));  // 2^32: no FP8 value is as large
    return or_i(select_i(beyond, encode_fp8<kFormat, kOverflow>(far), code), sign);
  }
  return or_i(code, sign);
}

// Codes of 64 values in order; random[j]: the words of x[j].
template <format::Format kFormat, format::Overflow kOverflow>
PLIMSOLL_INLINE void store_fp8_stochastic_by_16(uint8_t* codes, const F32x16 (&x)[4], const I32x16 (&random)[4]) {
  for (int k = 0; k < 4; ++k) {
    store_u8(codes + 16 * k, encode_fp8_stochastic<kFormat, kOverflow>(x[k], random[k]));
  }
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
// Rounded as FP32: adding what is left to the next code minus the random bits carries where they are below the
// fraction.
template <format::Format kFormat, format::Overflow kOverflow>
PLIMSOLL_INLINE void store_fp8_64_stochastic(uint8_t* codes, const F32x16 (&x)[4], const I32x16 (&random)[4]) {
  using Words = Fp8Words<kFormat>;
  constexpr int kCut = 23 - Fp8Layout<kFormat>::kMantissaBits;
  constexpr int kOneCode = 1 << Words::kShift;
  constexpr int kLargest = kOverflow == format::Overflow::kSaturate ? 0x7f7f : Words::kLargest;
  __m512i rounded[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const I32x16 raised = bits(mul(x[k], set(Words::kRaise)));
    const I32x16 above = sub_i(set_i((1 << kCut) - 1), shift_right<32 - kCut>(random[k]));
    rounded[k] = add_i(raised, above).v;
  }
  const __m512i even = upper_halves(rounded[0], rounded[2]), odd = upper_halves(rounded[1], rounded[3]);
  const __m512i magnitude = _mm512_set1_epi16(static_cast<short>(0x8000 - kOneCode));
  const __m512i a = _mm512_and_si512(even, magnitude), b = _mm512_and_si512(odd, magnitude);
  // The smallest normal code may come from below, and a NaN may have been carried away.
  const bool rare = outside(a, b, Words::kSmallest + kOneCode, kLargest).any();
  const bool nan = (unordered(x[0], x[1]) | unordered(x[2], x[3])) != 0;
  if (__builtin_expect(rare || nan, 0)) return store_fp8_stochastic_by_16<kFormat, kOverflow>(codes, x, random);
  store_in_order(codes, join_codes<kFormat>(even, a, odd, b));
}
#else
template <format::Format kFormat, format::Overflow kOverflow>
PLIMSOLL_INLINE void store_fp8_64_stochastic(uint8_t* codes, const F32x16 (&x)[4], const I32x16 (&random)[4]) {
  store_fp8_stochastic_by_16<kFormat, kOverflow>(codes, x, random);
}
#endif

}  // namespace
}  // namespace plimsoll::kernels
