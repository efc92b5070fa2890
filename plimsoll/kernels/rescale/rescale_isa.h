// What the ISA files supply.
#pragma once

#include "plimsoll/kernels/rescale/rescale.h"

namespace plimsoll::kernels {

// One thread's part; returns the bits of its amax.
int32_t rescale_part_portable(const Rescale& part);
int32_t rescale_part_avx2(const Rescale& part);
int32_t rescale_part_avx512(const Rescale& part);

}  // namespace plimsoll::kernels
