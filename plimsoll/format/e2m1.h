// E2M1 of OCP Microscaling v1.0, one code in the low four bits of a byte. No Inf, no NaN: both become +-6.
#pragma once

#include "plimsoll/format/small_float.h"

namespace plimsoll::format {

struct E2m1 : SmallFloat<Format::kE2m1, uint8_t, 2, 1> {
  // Two codes in a byte: the element of even index in the low half, as torch's float4_e2m1fn_x2 has them.
  static constexpr uint8_t pair(Code even, Code odd) { return static_cast<uint8_t>((even & 0xfu) | (odd << 4)); }
  static constexpr Code even_of(uint8_t pair) { return pair & 0xfu; }
  static constexpr Code odd_of(uint8_t pair) { return static_cast<Code>(pair >> 4); }
  // Bytes of `count` elements; the last half of an odd count is zero.
  static constexpr int64_t bytes(int64_t count) { return (count + 1) / 2; }
};

}  // namespace plimsoll::format
