// What the ISA files supply: one part of a step on one thread, the bit pattern of its amax.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/sgd/sgd.h"

namespace plimsoll::kernels {

int32_t sgd_part_portable(const Sgd& part);
int32_t sgd_part_avx2(const Sgd& part);
int32_t sgd_part_avx512(const Sgd& part);

}  // namespace plimsoll::kernels
