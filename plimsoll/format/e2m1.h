// E2M1 of OCP Microscaling v1.0, one code in the low four bits of a byte. No Inf, no NaN: both become +-6.
#pragma once

#include "plimsoll/format/small_float.h"

namespace plimsoll::format {

struct E2m1 : SmallFloat<Format::kE2m1, uint8_t, 2, 1> {};

}  // namespace plimsoll::format
