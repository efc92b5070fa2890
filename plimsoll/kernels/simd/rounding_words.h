// runtime/rounding_words.h for vector code: the same words, 16 at a time. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/vector.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels {
namespace {

// Words of the elements lower + x, 0 <= x < 2^16, in place of x; no bit is set in both.
template <int kCount>
PLIMSOLL_INLINE void rounding_words_at(runtime::RoundingKeys keys, uint32_t lower, I32x16 (&x)[kCount]) {
  using runtime::RoundingWords;
  // Places differ in bits that x >> 16 does not see.
  const uint32_t first = lower ^ keys.first;
  const I32x16 start = set_i(static_cast<int32_t>(first ^ (first >> 16)));
  for (I32x16& v : x) v = xor_i(start, v);
  for (I32x16& v : x) v = mul_i(v, set_i(static_cast<int32_t>(RoundingWords::kMultiply0)));
  for (I32x16& v : x) v = xor_i(xor_i(v, shift_right<15>(v)), set_i(static_cast<int32_t>(keys.second)));
  for (I32x16& v : x) v = mul_i(v, set_i(static_cast<int32_t>(RoundingWords::kMultiply1)));
  for (I32x16& v : x) v = xor_i(v, shift_right<15>(v));
}

// Words of the elements from `lower` on, a multiple of the 16 kCount that there are; kCount: 1, 2 or 4.
template <int kCount>
PLIMSOLL_INLINE void rounding_words(runtime::RoundingKeys keys, uint32_t lower, I32x16 (&x)[kCount]) {
  alignas(64) static constexpr int32_t kPlaces[4][16] = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
      {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31},
      {32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47},
      {48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63}};
  for (int j = 0; j < kCount; ++j) __builtin_memcpy(&x[j], kPlaces[j], sizeof(x[j]));
  rounding_words_at(keys, lower, x);
}

PLIMSOLL_INLINE I32x16 rounding_words(runtime::RoundingKeys keys, uint32_t lower) {
  I32x16 x[1];
  rounding_words(keys, lower, x);
  return x[0];
}

}  // namespace
}  // namespace plimsoll::kernels
