// Runs of neighbouring elements of FP32, BF16 and FP16, of which some may be missing, at any address: packed where all are there and
// aligned, else one by one. A NaN becomes any NaN.
#pragma once

#include "plimsoll/kernels/cuda/packed_run.cuh"

namespace plimsoll::kernels {

template <Format kFormat, int kRun>
__device__ inline bool is_packed(const Element<kFormat>* p, int count) {
  return count == kRun && is_aligned(p, 0, kRun);
}

// The first `count` of kRun elements; the others are 0.
template <Format kFormat, int kRun>
__device__ inline void load_any_run(const Element<kFormat>* p, int count, float (&x)[kRun]) {
  if (is_packed<kFormat, kRun>(p, count)) {
    PackedRun<kFormat, kRun>::at(p).decode(x);
  } else {
    load_run<kFormat, kRun>(p, count, false, x);
  }
}

// The first `count` of kRun values, each rounded once.
template <Format kFormat, int kRun>
__device__ inline void store_any_run(Element<kFormat>* p, int count, const float (&x)[kRun]) {
  if (is_packed<kFormat, kRun>(p, count)) {
    PackedRun<kFormat, kRun>::of(x).store(p);
  } else {
    store_run<kFormat, kRun>(p, count, false, x);
  }
}

// The first `count` of kRun elements, bit by bit.
template <Format kFormat, int kRun>
__device__ inline void copy_any_run(const Element<kFormat>* from, Element<kFormat>* to, int count) {
  if (is_packed<kFormat, kRun>(from, count) && is_aligned(to, 0, kRun)) {
    PackedRun<kFormat, kRun>::at(from).store(to);
  } else {
#pragma unroll 1
    for (int i = 0; i < count; ++i) to[i] = from[i];
  }
}

}  // namespace plimsoll::kernels
