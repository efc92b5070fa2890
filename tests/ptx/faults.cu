// Kernels with deliberate faults, each beside the same kernel without it. The interpreter's tests run both. One block has 64 threads.
#include <cstdint>

#include "plimsoll/kernels/cuda/elements.cuh"

namespace plimsoll::kernels {
namespace {

// y[i] = x[i] of the thread at the other end of the block.
template <bool kFault>
__device__ void reverse(const float* x, float* y) {
  __shared__ float shared[64];
  shared[threadIdx.x] = x[threadIdx.x];
  if (!kFault) __syncthreads();
  y[threadIdx.x] = shared[63 - threadIdx.x];
}

// y[i] = 2 x[i], i < count.
template <bool kFault>
__device__ void twice(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * 64 + threadIdx.x;
  if (kFault ? i <= count : i < count) y[i] = 2 * x[i];
}

// The sum of each warp.
template <bool kFault>
__device__ void sum(const float* x, float* y) {
  float value = x[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFault ? 0x0000ffffu : 0xffffffffu, value, distance);
  }
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = value;
}

// Sum of the lanes that a count leaves, all of which must take part.
template <bool kFault>
__device__ void sum_some(const float* x, float* y, int64_t count) {
  if (kFault && threadIdx.x >= count) return;
  float value = threadIdx.x < count ? x[threadIdx.x] : 0.0f;
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = value;
}

// y[0]: amax, which blocks raise; y[1]: the number of elements, which the first block stores. The fault stores a zero before it.
template <bool kFault>
__device__ void amax_and_count(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * 64 + threadIdx.x;
  if (i == 0) {
    if (kFault) {
      *reinterpret_cast<float2*>(y) = {0.0f, static_cast<float>(count)};
    } else {
      y[1] = static_cast<float>(count);
    }
  }
  if (i < count) atomicMax(reinterpret_cast<int32_t*>(y), __float_as_int(fabsf(x[i])));
}

// y[0] = largest magnitude of several blocks. The fault compares and stores.
template <bool kFault>
__device__ void largest(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * 64 + threadIdx.x;
  if (i >= count) return;
  if (kFault) {
    if (threadIdx.x == 0) *y = fmaxf(*y, fabsf(x[i]));
  } else {
    atomicMax(reinterpret_cast<int32_t*>(y), __float_as_int(fabsf(x[i])));
  }
}

// E5M2 codes of x, two a thread. The fault leaves Inf to the card's conversion, which saturates it.
template <bool kFault>
__device__ void codes(const float* x, uint16_t* y, int64_t count) {
  const int64_t i = blockIdx.x * 64 + threadIdx.x;
  if (2 * i + 1 >= count) return;
  uint16_t two;
  if (kFault) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
  } else {
    two = static_cast<uint16_t>(encode_two<format::E5m2>(x[2 * i], x[2 * i + 1]).bits);
  }
  y[i] = two;
}

// Four elements a thread at once, of an x that may begin anywhere.
template <bool kFault>
__device__ void copy(const float* x, float* y, int64_t count) {
  const int64_t i = 4 * threadIdx.x;
  if (i + 4 > count) return;
  if (kFault || is_aligned(x, 0, 4)) {
    *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(x + i);
  } else {
    for (int k = 0; k < 4; ++k) y[i + k] = x[i + k];
  }
}

}  // namespace

#define PLIMSOLL_PAIR(name, function, ...)                                                            \
  extern "C" __global__ void name##_sound(const float* x, float* y, [[maybe_unused]] int64_t count) { \
    function<false>(__VA_ARGS__);                                                                     \
  }                                                                                                   \
  extern "C" __global__ void name(const float* x, float* y, [[maybe_unused]] int64_t count) {         \
    function<true>(__VA_ARGS__);                                                                      \
  }

PLIMSOLL_PAIR(missing_barrier, reverse, x, y)
PLIMSOLL_PAIR(tail_off_by_one, twice, x, y, count)
PLIMSOLL_PAIR(mask_of_half_a_warp, sum, x, y)
PLIMSOLL_PAIR(lanes_that_left, sum_some, x, y, count)
PLIMSOLL_PAIR(neighbour_of_an_atomic, amax_and_count, x, y, count)
PLIMSOLL_PAIR(largest_without_atomic, largest, x, y, count)
PLIMSOLL_PAIR(inf_lost, codes, x, reinterpret_cast<uint16_t*>(y), count)
PLIMSOLL_PAIR(unaligned, copy, x, y, count)

}  // namespace plimsoll::kernels
