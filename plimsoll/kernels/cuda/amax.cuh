// Amaxes as FP32 bit patterns with the sign cleared: NaN > Inf > finite, as in shared_amax.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/cuda/launch.h"

namespace plimsoll::kernels {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ inline int32_t magnitude(float x) { return __float_as_int(x) & 0x7fffffff; }

template <int kRun>
__device__ inline int32_t amax_of(int32_t amax, const float (&x)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) amax = max(amax, magnitude(x[i]));
  return amax;
}

// The largest of kLanes neighbours, a power of two. Every lane of the warp calls it and gets it.
template <int kLanes>
__device__ inline int32_t warp_max(int32_t x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

// The largest of the block. Every thread calls it and gets it; kThreads: of a block.
template <int kThreads>
__device__ inline int32_t block_max(int32_t x) {
  __shared__ int32_t warps[kThreads / kWarp];
  x = warp_max<kWarp>(x);
  __syncthreads();  // the call before has been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = warps[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) x = max(x, warps[warp]);
  return x;
}

// Raises *amax, if there is one, to the largest of the block. Every thread calls it.
template <int kThreads>
__device__ inline void raise_amax(int32_t x, float* amax) {
  if (amax == nullptr) return;
  x = block_max<kThreads>(x);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int32_t*>(amax), x);
}

}  // namespace plimsoll::kernels
