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

// kCount sums over a row at once, in the same order, by blocks of blockDim.x <= kMostThreads threads. add_terms(i, left, whole, sums):
// the terms of element i to sums[0] and, if left > 1, those of element i + 1 to sums[1]; whole: both can be read as one word, which
// `aligned` says of the row. Lane t has the elements 2 t and 2 t + 1, of chain t / 8, of each 64. Every thread calls it and
// gets the sums.
template <int kMostThreads, int kCount, class AddTerms>
__device__ inline void row_sums(int64_t count, bool aligned, float (&total)[kCount], AddTerms add_terms) {
  constexpr int kPairs = kSumLanes / 2;
  __shared__ float blocks[kMostThreads / kWarp][kCount][kSumLanes];
  const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (float& sum : total) sum = 0;
  for (int64_t first = 0; first < count; first += warps * kSumBlock) {
    const int64_t begin = first + warp * kSumBlock, end = min(begin + kSumBlock, count);
    float sums[2][kCount] = {};
    if (aligned && end - begin == kSumBlock) {
#pragma unroll 4
      for (int i = 0; i < kSumBlock; i += 2 * kWarp) add_terms(begin + i + 2 * lane, 2, true, sums);
    } else {
      for (int64_t i = begin + 2 * lane; i < end; i += 2 * kWarp) add_terms(i, end - i, aligned && end - i > 1, sums);
    }
    __syncthreads();  // the blocks before have been added
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        float sum = sums[side][j];
        sum += __shfl_xor_sync(kAllLanes, sum, kPairs);
        sum += __shfl_xor_sync(kAllLanes, sum, 2 * kPairs);
        if (lane < kPairs) blocks[warp][j][2 * lane + side] = sum;
      }
    }
    __syncthreads();
    const int64_t left = pieces_of(count - first, kSumBlock);
    for (int i = 0; i < warps && i < left; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) total[j] += blocks[i][j][lane % kSumLanes];
    }
  }
#pragma unroll
  for (float& sum : total) {
#pragma unroll
    for (int distance = kSumLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
}

}  // namespace plimsoll::kernels
