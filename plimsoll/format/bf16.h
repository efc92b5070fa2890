// BF16: the upper half of FP32. Overflow becomes Inf whatever Overflow says; the argument is there for generic callers.
#pragma once

#include "plimsoll/format/small_float.h"

namespace plimsoll::format {

struct Bf16 : SmallFloat<Format::kBf16, uint16_t, 8, 7> {};

}  // namespace plimsoll::format
