// 64 elements of a row in the lanes that are cheapest for their format: in order, or BF16 as even and odd elements.
#pragma once

#include "plimsoll/kernels/simd/bf16_pairs.h"
#include "plimsoll/kernels/simd/row.h"

namespace plimsoll::kernels {
namespace {

struct Lanes64 {
  F32x16 x[4];
};

template <format::Format kFormat>
PLIMSOLL_INLINE Lanes64 load_64(const void* p, int64_t i) {
  if constexpr (kFormat == format::Format::kBf16) {
    const uint16_t* halves = static_cast<const uint16_t*>(p) + i;
    const Bf16Pairs low = load_bf16_pairs(halves), high = load_bf16_pairs(halves + 32);
    return {{low.even, low.odd, high.even, high.odd}};
  } else {
    const AllLanes all;
    return {{load_as<kFormat>(p, i, all), load_as<kFormat>(p, i + 16, all), load_as<kFormat>(p, i + 32, all),
             load_as<kFormat>(p, i + 48, all)}};
  }
}

// Puts them where load_64 found them. Of BF16, a NaN stays one as store_bf16_pairs says.
template <format::Format kFormat>
PLIMSOLL_INLINE void store_64(void* p, int64_t i, const Lanes64& value) {
  if constexpr (kFormat == format::Format::kBf16) {
    uint16_t* halves = static_cast<uint16_t*>(p) + i;
    store_bf16_pairs(halves, {value.x[0], value.x[1]});
    store_bf16_pairs(halves + 32, {value.x[2], value.x[3]});
  } else {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) store_as<kFormat>(p, i + 16 * k, value.x[k], AllLanes{});
  }
}

// The largest of all lanes; there is no NaN among them.
PLIMSOLL_INLINE float reduce_max(F32x16 x) {
  // As integers, floats are ordered once the negative ones are turned round.
  auto turned = [](I32x16 i) { return select_i(less_i(i, set_i(0)), xor_i(i, set_i(0x7fffffff)), i); };
  return first_lane(from_bits(turned(set_i(reduce_max_i(turned(bits(x)))))));
}

}  // namespace
}  // namespace plimsoll::kernels
