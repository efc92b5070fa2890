// AdamW on a CUDA device. What an element becomes stands in adamw_coefficients.h.
#include "plimsoll/kernels/adamw/adamw_launch.h"
#include "plimsoll/kernels/cuda/amax.cuh"
#include "plimsoll/kernels/cuda/elements.cuh"

namespace plimsoll::kernels {
namespace {

constexpr int kRun = kAdamWRun;

template <Format kNarrow>
__device__ void store_narrow(const AdamW& args, int64_t i, int64_t count, const float (&weight)[kRun]) {
  auto* narrow = static_cast<Element<kNarrow>*>(args.narrow) + i;
  store_run<kNarrow, kRun>(narrow, count, count >= kRun && is_aligned(narrow, 0, kRun), weight);
}

template <Format kGrad>
__device__ void adamw(const AdamW& args, const AdamWCoefficients& c, float* amax) {
  const auto* grad = static_cast<const Element<kGrad>*>(args.grad);
  auto *weight = args.master, *moment1 = static_cast<float*>(args.moment1),
       *moment2 = static_cast<float*>(args.moment2);
  const bool aligned_grad = is_aligned(grad, 0, kRun);
  const bool aligned = is_aligned(weight, 0, kRun) && is_aligned(moment1, 0, kRun) && is_aligned(moment2, 0, kRun);
  int32_t largest = 0;
  for (int64_t tile = blockIdx.x; tile * kAdamWThreads * kRun < args.count; tile += gridDim.x) {
    const int64_t i = (tile * kAdamWThreads + threadIdx.x) * kRun, count = args.count - i;
    if (count <= 0) continue;
    const bool whole = count >= kRun && aligned;
    float g[kRun], w[kRun], m[kRun], v[kRun];
    load_run<kGrad, kRun>(grad + i, count, count >= kRun && aligned_grad, g);
    load_run<Format::kFp32, kRun>(weight + i, count, whole, w);
    load_run<Format::kFp32, kRun>(moment1 + i, count, whole, m);
    load_run<Format::kFp32, kRun>(moment2 + i, count, whole, v);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const AdamWElement after = adamw_step(c, {w[k], m[k], v[k]}, g[k]);
      w[k] = after.weight;
      m[k] = after.moment1;
      v[k] = after.moment2;
      if (k < count) largest = max(largest, magnitude(w[k]));
    }
    store_run<Format::kFp32, kRun>(weight + i, count, whole, w);
    store_run<Format::kFp32, kRun>(moment1 + i, count, whole, m);
    store_run<Format::kFp32, kRun>(moment2 + i, count, whole, v);
    if (args.narrow != nullptr) {
      if (args.narrow_format == Format::kBf16) {
        store_narrow<Format::kBf16>(args, i, count, w);
      } else {
        store_narrow<Format::kFp16>(args, i, count, w);
      }
    }
  }
  raise_amax<kAdamWThreads>(largest, amax);
}

}  // namespace

#define PLIMSOLL_KERNEL(grad, kGrad)                                                                               \
  extern "C" __global__ void __launch_bounds__(kAdamWThreads)                                                      \
      adamw_##grad(const __grid_constant__ AdamW args, const __grid_constant__ AdamWCoefficients c, float* amax) { \
    adamw<Format::kGrad>(args, c, amax);                                                                           \
  }

PLIMSOLL_KERNEL(fp32, kFp32)
PLIMSOLL_KERNEL(bf16, kBf16)
PLIMSOLL_KERNEL(fp16, kFp16)

}  // namespace plimsoll::kernels
