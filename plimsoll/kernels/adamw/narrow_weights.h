// AdamW's weights and BF16 moments in fewer bits, kVectors vectors together. Rules: adamw.h. Internal linkage, as in
// simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Elements that are updated together.
constexpr int64_t kTogether = 16 * kVectors;

using F32s = F32x16[kVectors];
using I32s = I32x16[kVectors];

constexpr int32_t kUpperHalf = INT32_C(-0x10000), kInfBits = 0x7f800000;

// The half of an element's random word that rounds it.
enum class Half { kUpper, kLower };

// The 16 bits as a number.
template <Half kHalf>
PLIMSOLL_INLINE I32x16 random_bits(I32x16 word) {
  return kHalf == Half::kUpper ? shift_right<16>(word) : and_i(word, set_i(0xffff));
}

// Bits of the larger magnitude, NaN above all; has_nan: there may be some.
PLIMSOLL_INLINE I32x16 largest_of(F32x16 a, F32x16 b, bool has_nan) {
  if (__builtin_expect(has_nan, 0)) return max_i(bits(abs(a)), bits(abs(b)));
  return bits(max_magnitude(a, b));
}

PLIMSOLL_INLINE void store_upper(uint16_t* p, const I32s& x) {
  for (int j = 0; j < kVectors; j += 2) store_upper_32(p + 16 * j, x[j], x[j + 1]);
}

// Up in magnitude if the 16 bits that are cut off and the random ones carry. has_nan: there may be some.
template <Half kHalf>
PLIMSOLL_INLINE void store_bf16_stochastic(uint16_t* p, const F32s& x, const I32s& words, bool has_nan) {
  I32s raised;
  for (int j = 0; j < kVectors; ++j) raised[j] = add_i(bits(x[j]), random_bits<kHalf>(words[j]));
  if (__builtin_expect(!has_nan, 1)) return store_upper(p, raised);
  for (int j = 0; j < kVectors; ++j) {
    const F32x16 rounded = from_bits(and_i(raised[j], set_i(kUpperHalf)));
    store_bf16(p + 16 * j, select(equal(x[j], x[j]), rounded, x[j]));
  }
}

// Bits of the power of two that a magnitude has as its exponent; at least that of the least normal number.
PLIMSOLL_INLINE I32x16 exponent_of(F32x16 x) { return max_i(and_i(bits(x), set_i(kInfBits)), set_i(0x00800000)); }

// FP32 rounds correction / 127 and the sum; for every BF16 number and every correction that is the nearest to the exact
// sum (split_weights_test.cpp). A correction of another weight could lead below zero: the sign is the weight's.
PLIMSOLL_INLINE void load_split(const uint16_t* narrow, const int8_t* correction, F32s& w) {
  constexpr float kHalfUlp = 0x1p-8f;  // of 1
  load_bf16(narrow, w);
  F32s shift;
  for (int j = 0; j < kVectors; ++j) shift[j] = mul(to_float(load_i8(correction + 16 * j)), set(1 / 127.0f * kHalfUlp));
  for (int j = 0; j < kVectors; ++j) {
    const F32x16 exponent = from_bits(min_i(exponent_of(w[j]), set_i(0x7f000000)));  // of Inf: finite
    w[j] = copy_sign(fma(shift[j], exponent, w[j]), w[j]);
  }
}

// The corrections that lead from w, finite, to x: exact but for the last rounding.
PLIMSOLL_INLINE void corrections_to(const F32s& x, const F32s& w, I32s& code) {
  for (int j = 0; j < kVectors; ++j) {
    // 1 / half_ulp is 2^7 times this.
    const F32x16 inverse = from_bits(sub_i(set_i(kInfBits), exponent_of(w[j])));
    code[j] = nearest_int(mul(mul(sub(x[j], w[j]), set(127 * 0x1p7f)), inverse));
  }
}

// largest: bits of the largest magnitudes, but for NaN.
PLIMSOLL_INLINE void store_split(uint16_t* narrow, int8_t* correction, const F32s& x, I32x16 largest, bool has_nan) {
  constexpr int32_t kRoundsToInf = 0x7f7f8000;  // the least magnitude that does
  I32s code;
  if (__builtin_expect(!has_nan && all(less_i(largest, set_i(kRoundsToInf))), 1)) {
    I32s odd, rounded;
    F32s w;
    for (int j = 0; j < kVectors; ++j) odd[j] = and_i(shift_right<16>(bits(x[j])), set_i(1));
    for (int j = 0; j < kVectors; ++j)
      rounded[j] = and_i(add_i(bits(x[j]), add_i(odd[j], set_i(0x7fff))), set_i(kUpperHalf));
    store_upper(narrow, rounded);
    for (int j = 0; j < kVectors; ++j) w[j] = from_bits(rounded[j]);
    corrections_to(x, w, code);
  } else {
    F32s finite, w;
    for (int j = 0; j < kVectors; ++j) store_bf16(narrow + 16 * j, x[j]);
    load_bf16(narrow, w);
    for (int j = 0; j < kVectors; ++j) {
      const Mask16 is_finite = less(abs(w[j]), from_bits(set_i(kInfBits)));
      finite[j] = select(is_finite, x[j], zero());
      w[j] = select(is_finite, w[j], zero());
    }
    corrections_to(finite, w, code);
  }
  store_i8(correction, code);
}

}  // namespace
}  // namespace plimsoll::kernels
