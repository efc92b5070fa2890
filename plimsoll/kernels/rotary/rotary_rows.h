// The tokens of rotary() on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/rotary/rotary.h"

namespace plimsoll::kernels {

void rotary_tokens_avx2(const Rotary& args, int64_t begin, int64_t end);
void rotary_tokens_avx512(const Rotary& args, int64_t begin, int64_t end);

}  // namespace plimsoll::kernels
