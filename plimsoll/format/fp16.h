// IEEE 754 binary16. A finite value beyond 65504 becomes Inf whatever Overflow says; the argument is there for generic
// callers.
#pragma once

#include "plimsoll/format/small_float.h"

namespace plimsoll::format {

struct Fp16 : SmallFloat<Format::kFp16, uint16_t, 5, 10> {};

}  // namespace plimsoll::format
