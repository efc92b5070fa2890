// Reads of x by the tile passes: 16 elements, or 64 in the order that is cheapest.
#pragma once

#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/lanes64.h"
#include "plimsoll/kernels/simd/row.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using format::Overflow;

template <Format kInput, class ElementType>
struct InputOf {
  static constexpr Format kFormat = kInput;
  static constexpr Order kOrder = kInput == Format::kBf16 ? Order::kEvenOdd : Order::kInOrder;  // of load_64
  using Element = ElementType;
  PLIMSOLL_INLINE F32x16 full(const Element* p) { return load_as<kInput>(p, 0, AllLanes{}); }
  PLIMSOLL_INLINE F32x16 first_n(const Element* p, int64_t n) { return load_as<kInput>(p, 0, n); }
  PLIMSOLL_INLINE Lanes64 in_order(const Element* p) { return {{full(p), full(p + 16), full(p + 32), full(p + 48)}}; }
};

// Calls pass(InputOf<x_format, its element>{}).
template <class Pass>
PLIMSOLL_INLINE auto with_input(Format x_format, Pass pass) {
  if (x_format == Format::kBf16) return pass(InputOf<Format::kBf16, uint16_t>{});
  if (x_format == Format::kFp16) return pass(InputOf<Format::kFp16, uint16_t>{});
  return pass(InputOf<Format::kFp32, float>{});
}

// Streams are read about 1 KB ahead of use: the hardware alone starts anew on every page.
constexpr int64_t kPrefetchBytes = 1024;

// The largest magnitudes of what passes, as amax_of. Of 16-bit formats the bits without the sign are in the order of
// the magnitudes, NaN last: 32 at once.
template <class In>
struct RunningAmax {
  static constexpr bool kPacked = sizeof(typename In::Element) == 2;
  I32x16 lanes = set_i(0), halves = set_i(0);

  __attribute__((always_inline)) void add_32(const typename In::Element* p) {
    if constexpr (kPacked) {
      const I32x16 words = bits(load(reinterpret_cast<const float*>(p)));
      halves = max_u16(halves, and_i(words, set_i(0x7fff7fff)));
    } else {
      lanes = amax_of(amax_of(lanes, In::full(p)), In::full(p + 16));
    }
  }
  __attribute__((always_inline)) void add_first_n(const typename In::Element* p, int64_t n) {
    lanes = amax_of(lanes, In::first_n(p, n));
  }
  __attribute__((always_inline)) I32x16 largest() const {
    if constexpr (In::kFormat == Format::kBf16) {
      return max_i(lanes, max_i(shift_left<16>(halves), and_i(halves, set_i(INT32_C(-0x10000)))));
    } else if constexpr (kPacked) {
      uint16_t words[32];
      __builtin_memcpy(words, &halves, sizeof(words));
      return amax_of(amax_of(lanes, In::full(words)), In::full(words + 16));
    } else {
      return lanes;
    }
  }
};

}  // namespace
}  // namespace plimsoll::kernels
