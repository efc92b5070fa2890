// The two 8-bit formats of OCP 8-bit Floating Point v1.0. E4M3 has no Inf and one NaN per sign; E5M2 is IEEE-like.
#pragma once

#include "plimsoll/format/small_float.h"

namespace plimsoll::format {

struct E4m3 : SmallFloat<Format::kE4m3, uint8_t, 4, 3> {};
struct E5m2 : SmallFloat<Format::kE5m2, uint8_t, 5, 2> {};

}  // namespace plimsoll::format
