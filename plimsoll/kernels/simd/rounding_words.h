// runtime/rounding_words.h for vector code: the same words, 16 at a time. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/vector.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels {
namespace {

// Words of the elements `lower` to `lower` + 15; lower: a multiple of 16.
PLIMSOLL_INLINE I32x16 rounding_words(runtime::RoundingKeys keys, uint32_t lower) {
  using runtime::RoundingWords;
  alignas(64) constexpr int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  I32x16 x;
  __builtin_memcpy(&x, kLanes, sizeof(x));
  x = xor_i(x, set_i(static_cast<int32_t>(lower ^ keys.first)));
  x = mul_i(xor_i(x, shift_right<16>(x)), set_i(static_cast<int32_t>(RoundingWords::kMultiply0)));
  x = xor_i(xor_i(x, shift_right<15>(x)), set_i(static_cast<int32_t>(keys.second)));
  x = mul_i(x, set_i(static_cast<int32_t>(RoundingWords::kMultiply1)));
  return xor_i(x, shift_right<15>(x));
}

}  // namespace
}  // namespace plimsoll::kernels
