// The loop of pointwise() on one instruction set. Private to this folder.
#pragma once

#include "plimsoll/kernels/pointwise/pointwise.h"

namespace plimsoll::kernels {

struct PointwisePart {
  int32_t amax_bits;
  float sum_of_squares;
};
struct PointwiseLoops {
  PointwisePart (*part)(const Pointwise& part);  // a block
};

extern const PointwiseLoops kPointwiseLoopsPortable, kPointwiseLoopsAvx2, kPointwiseLoopsAvx512;

}  // namespace plimsoll::kernels
