// Norms on a CUDA device. What an element becomes stands in norm_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/cuda/elements.cuh"
#include "plimsoll/kernels/cuda/row_sum.cuh"
#include "plimsoll/kernels/inv_scale.h"
#include "plimsoll/kernels/norm/norm_element.h"
#include "plimsoll/kernels/norm/norm_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kRun = kNormRun;

struct Statistics {
  float mean, rstd;
};

// One row. It is read three times, from caches but for the first.
template <Format kX, Format kY>
struct NormRow {
  const NormForward& args;
  int64_t offset;  // of its first element

  __device__ const void* source() const { return args.residual != nullptr ? args.sum : args.x; }

  __device__ void add_residual() const {
    const auto *x = static_cast<const Element<kX>*>(args.x) + offset,
               *residual = static_cast<const Element<kX>*>(args.residual) + offset;
    auto* sum = static_cast<Element<kX>*>(args.sum) + offset;
    const bool aligned = is_aligned(x, 0, kRun) && is_aligned(residual, 0, kRun) && is_aligned(sum, 0, kRun);
    for (int64_t col = threadIdx.x * kRun; col < args.cols; col += kNormThreads * kRun) {
      const int64_t count = args.cols - col;
      const bool whole = count >= kRun && aligned;
      float a[kRun], b[kRun];
      load_run<kX, kRun>(x + col, count, whole, a);
      load_run<kX, kRun>(residual + col, count, whole, b);
#pragma unroll
      for (int i = 0; i < kRun; ++i) a[i] += b[i];
      store_run<kX, kRun>(sum + col, count, whole, a);
    }
    __syncthreads();  // all read it
  }

  __device__ Statistics statistics() const {
    const void* x = source();
    const float count = static_cast<float>(args.cols);
    if (args.kind == NormKind::kRmsNorm) {
      const float squares = row_sum<kNormThreads>(args.cols, [&](int64_t i, float sum) {
        const float value = load<kX>(x, offset + i);
        return fmaf(value, value, sum);
      });
      return {0.0f, rstd_of_variance(squares / count, args.epsilon)};
    }
    const float mean =
        row_sum<kNormThreads>(args.cols, [&](int64_t i, float sum) { return sum + load<kX>(x, offset + i); }) / count;
    const float squares = row_sum<kNormThreads>(args.cols, [&](int64_t i, float sum) {
      const float difference = load<kX>(x, offset + i) - mean;
      return fmaf(difference, difference, sum);
    });
    return {mean, rstd_of_variance(squares / count, args.epsilon)};
  }

  // Returns the amax of y with `amax`.
  __device__ int32_t write(const Statistics& s, float inv_scale, int32_t amax) const {
    const auto* x = static_cast<const Element<kX>*>(source()) + offset;
    auto* y = static_cast<Element<kY>*>(args.y) + offset;
    const bool aligned = is_aligned(x, 0, kRun), aligned_y = is_aligned(y, 0, kRun);
    for (int64_t col = threadIdx.x * kRun; col < args.cols; col += kNormThreads * kRun) {
      const int64_t count = args.cols - col;
      float value[kRun];
      load_run<kX, kRun>(x + col, count, count >= kRun && aligned, value);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (i >= count) break;
        const float gain = gain_of(args.weight[col + i], args.zero_centered);
        value[i] = args.bias != nullptr ? normalized(value[i], s.mean, s.rstd, gain, args.bias[col + i])
                                        : normalized(value[i], s.mean, s.rstd, gain);
        amax = max(amax, magnitude(value[i]));
        if constexpr (format::is_fp8(kY)) value[i] *= inv_scale;
      }
      store_run<kY, kRun>(y + col, count, count >= kRun && aligned_y, value);
    }
    return amax;
  }
};

template <Format kX, Format kY>
__device__ void norm_forward(const NormForward& args) {
  const float inv_scale = inv_scale_at(args.scale);
  int32_t amax = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const NormRow<kX, kY> one = {args, row * args.cols};
    if (args.residual != nullptr) one.add_residual();
    const Statistics statistics = one.statistics();
    amax = one.write(statistics, inv_scale, amax);
    if (threadIdx.x == 0) {
      if (args.mean != nullptr) args.mean[row] = statistics.mean;
      if (args.rstd != nullptr) args.rstd[row] = statistics.rstd;
    }
  }
  raise_amax<kNormThreads>(amax, args.amax);
}

}  // namespace

#define PLIMSOLL_KERNEL(x, kX, y, kY)                                       \
  extern "C" __global__ void __launch_bounds__(kNormThreads, kNormResident) \
      norm_forward_##x##_##y(const __grid_constant__ NormForward args) {    \
    norm_forward<Format::kX, Format::kY>(args);                             \
  }
#define PLIMSOLL_KERNELS(x, kX) \
  PLIMSOLL_KERNEL(x, kX, x, kX) PLIMSOLL_KERNEL(x, kX, e4m3, kE4m3) PLIMSOLL_KERNEL(x, kX, e5m2, kE5m2)

PLIMSOLL_KERNELS(fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16)
PLIMSOLL_KERNEL(bf16, kBf16, fp32, kFp32)
PLIMSOLL_KERNEL(fp16, kFp16, fp32, kFp32)

}  // namespace plimsoll::kernels
