// Sums over many rows by way of partial sums of blocks of rows, with the bits of row_blocks.h.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/row_blocks.h"

namespace plimsoll::kernels {

// The sum over b of partial[b * stride], in groups as sum_blocks adds.
__device__ inline float sum_blocks_of(const float* partial, int64_t blocks, int64_t stride) {
  float sum = 0;
  for (int64_t group = 0; group < blocks; group += kGroup) {
    const int64_t end = min(group + kGroup, blocks);
    float total = 0;
#pragma unroll 8
    for (int64_t block = group; block < end; ++block) total += partial[block * stride];
    sum += total;
  }
  return sum;
}

}  // namespace plimsoll::kernels
