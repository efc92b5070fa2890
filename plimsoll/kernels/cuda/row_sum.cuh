// Sums over a row in the order of simd/row.h, so that they have its bits: blocks of 1,024 terms in four chains of 16 lanes, the
// blocks in one chain, the lanes joined by one tree.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/cuda/amax.cuh"

namespace plimsoll::kernels {

inline constexpr int kSumBlock = 1024, kSumLanes = 16;

// add_term(i, sum): sum and the term of element i. A warp sums a block: lane t has elements t (of chain 0 or 1) and t + 32 (of chain
// 2 or 3) of each 64. Every thread calls it and gets the sum; kThreads: of a block.
template <int kThreads, class AddTerm>
__device__ inline float row_sum(int64_t count, AddTerm add_term) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float blocks[kWarps][kSumLanes];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float total = 0;
  for (int64_t first = 0; first < count; first += kWarps * kSumBlock) {
    const int64_t begin = first + warp * kSumBlock, end = min(begin + kSumBlock, count);
    float low = 0, high = 0;
    for (int64_t i = begin + lane; i < end; i += 64) {
      low = add_term(i, low);
      if (i + kWarp < end) high = add_term(i + kWarp, high);
    }
    low += __shfl_xor_sync(kAllLanes, low, kSumLanes);
    high += __shfl_xor_sync(kAllLanes, high, kSumLanes);
    __syncthreads();  // the blocks before have been added
    if (lane < kSumLanes) blocks[warp][lane] = low + high;
    __syncthreads();
    const int64_t left = pieces_of(count - first, kSumBlock);
    for (int i = 0; i < kWarps && i < left; ++i) total += blocks[i][lane % kSumLanes];
  }
#pragma unroll
  for (int distance = kSumLanes / 2; distance > 0; distance /= 2) total += __shfl_xor_sync(kAllLanes, total, distance);
  return total;
}

}  // namespace plimsoll::kernels
