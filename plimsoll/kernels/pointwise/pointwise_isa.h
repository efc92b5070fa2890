// What the ISA files supply.
#pragma once

#include "plimsoll/kernels/pointwise/pointwise.h"

namespace plimsoll::kernels {

struct PointwisePart {
  int32_t amax_bits;
  float sum_of_squares;
};
using PointwisePartFunction = PointwisePart (*)(const Pointwise& part);

// A block.
PointwisePart pointwise_part_portable(const Pointwise& part);
PointwisePart pointwise_part_avx2(const Pointwise& part);
PointwisePart pointwise_part_avx512(const Pointwise& part);

}  // namespace plimsoll::kernels
