// Gradients of norms on a CUDA device. What an element becomes stands in norm_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/cuda/elements.cuh"
#include "plimsoll/kernels/cuda/row_blocks.cuh"
#include "plimsoll/kernels/cuda/row_sum.cuh"
#include "plimsoll/kernels/norm/norm_element.h"
#include "plimsoll/kernels/norm/norm_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kRun = kNormRun, kPair = 2;
static_assert(kNormWarpCols == kSumBlock);

__device__ float mean_at(const NormBackward& args, int64_t row) {
  return args.kind == NormKind::kLayerNorm ? args.mean[row] : 0.0f;
}

// One row. It is read twice, from caches but for the first.
template <Format kX>
struct GradientRow {
  using T = Element<kX>;
  const NormBackward& args;
  const T *dy, *x;
  int64_t offset;  // of its first element
  float mean, rstd;

  __device__ static GradientRow at(const NormBackward& args, int64_t row) {
    const int64_t offset = row * args.cols;
    return {args,
            static_cast<const T*>(args.dy) + offset,
            static_cast<const T*>(args.x) + offset,
            offset,
            mean_at(args, row),
            args.rstd[row]};
  }

  __device__ NormGradient gradient() const {
    const bool aligned = is_aligned(dy, 0, kPair) && is_aligned(x, 0, kPair) && is_aligned(args.weight, 0, kPair);
    float sums[2];  // of g and of g * normal
    row_sums<kNormThreads>(args.cols, aligned, sums, [&](int64_t i, int64_t left, bool whole, float(&sum)[kPair][2]) {
      float gradient[kPair], value[kPair], weight[kPair];
      load_run<kX, kPair>(dy + i, left, whole, gradient);
      load_run<kX, kPair>(x + i, left, whole, value);
      load_run<Format::kFp32, kPair>(args.weight + i, left, whole, weight);
#pragma unroll
      for (int k = 0; k < kPair; ++k) {
        if (k >= left) break;
        const float g = gradient[k] * gain_of(weight[k], args.zero_centered);
        sum[k][0] += g;
        sum[k][1] = fmaf(g, normal_of(value[k], mean, rstd), sum[k][1]);
      }
    });
    const float count = static_cast<float>(args.cols);
    return {rstd, args.kind == NormKind::kLayerNorm ? sums[0] / count : 0.0f, sums[1] / count};
  }

  __device__ void write(const NormGradient& gradient) const {
    const auto* dresidual = static_cast<const T*>(args.dresidual) + offset;
    auto* dx = static_cast<T*>(args.dx) + offset;
    const bool aligned = is_aligned(dy, 0, kRun) && is_aligned(x, 0, kRun) && is_aligned(dx, 0, kRun) &&
                         is_aligned(args.weight, 0, kRun) &&
                         (args.dresidual == nullptr || is_aligned(dresidual, 0, kRun));
    for (int64_t col = threadIdx.x * kRun; col < args.cols; col += blockDim.x * kRun) {
      const int64_t count = args.cols - col;
      const bool whole = count >= kRun && aligned;
      float g[kRun], value[kRun], weight[kRun], residual[kRun] = {};
      load_run<kX, kRun>(dy + col, count, whole, g);
      load_run<kX, kRun>(x + col, count, whole, value);
      load_run<Format::kFp32, kRun>(args.weight + col, count, whole, weight);
      if (args.dresidual != nullptr) load_run<kX, kRun>(dresidual + col, count, whole, residual);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        value[i] = gradient(g[i] * gain_of(weight[i], args.zero_centered), normal_of(value[i], mean, rstd));
        if (args.dresidual != nullptr) value[i] += residual[i];
      }
      store_run<kX, kRun>(dx + col, count, whole, value);
    }
  }
};

template <Format kX>
__device__ void norm_backward(const NormBackward& args) {
  for (int64_t index = blockIdx.x; index < args.rows; index += gridDim.x) {
    const auto row = GradientRow<kX>::at(args, index);
    row.write(row.gradient());
  }
}

// Terms of two neighbouring columns over the rows of a block.
struct ColumnSums {
  float dweight[kPair], dbias[kPair];
};
template <Format kX, bool kWhole>
__device__ ColumnSums sum_columns(const NormBackward& args, int64_t begin, int64_t end, int64_t col, int64_t left) {
  const auto *dy = static_cast<const Element<kX>*>(args.dy) + col, *x = static_cast<const Element<kX>*>(args.x) + col;
  ColumnSums sums = {};
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row) {
    float gradient[kPair], value[kPair];
    load_run<kX, kPair>(dy + row * args.cols, left, kWhole, gradient);
    load_run<kX, kPair>(x + row * args.cols, left, kWhole, value);
    const float mean = mean_at(args, row), rstd = args.rstd[row];
#pragma unroll
    for (int k = 0; k < kPair; ++k) {
      sums.dweight[k] = fmaf(gradient[k], normal_of(value[k], mean, rstd), sums.dweight[k]);
      sums.dbias[k] += gradient[k];
    }
  }
  return sums;
}

template <Format kX>
__device__ void norm_backward_partials(const NormBackward& args, float* partials) {
  const auto *dy = static_cast<const Element<kX>*>(args.dy), *x = static_cast<const Element<kX>*>(args.x);
  const bool aligned = is_aligned(dy, args.cols, kPair) && is_aligned(x, args.cols, kPair);
  const int64_t across = pieces_of(args.cols, kNormPartialCols), blocks = pieces_of(args.rows, kRowBlock);
  for (int64_t tile = blockIdx.x; tile < blocks * across; tile += gridDim.x) {
    const int64_t block = tile / across, col = tile % across * kNormPartialCols + threadIdx.x * kPair;
    const int64_t left = args.cols - col;
    if (left <= 0) continue;
    const int64_t begin = block * kRowBlock, end = min(begin + kRowBlock, args.rows);
    const ColumnSums sums = left >= kPair && aligned ? sum_columns<kX, true>(args, begin, end, col, left)
                                                     : sum_columns<kX, false>(args, begin, end, col, left);
    float* partial = partials + block * norm_sum_count(args) * args.cols + col;
    if (args.dweight != nullptr) {
      store_run<Format::kFp32, kPair>(partial, left, left >= kPair && is_aligned(partial, 0, kPair), sums.dweight);
      partial += args.cols;
    }
    if (args.dbias != nullptr) {
      store_run<Format::kFp32, kPair>(partial, left, left >= kPair && is_aligned(partial, 0, kPair), sums.dbias);
    }
  }
}

}  // namespace

#define PLIMSOLL_KERNELS(x, kX)                                                     \
  extern "C" __global__ void __launch_bounds__(kNormThreads, kNormGradientResident) \
      norm_backward_##x(const __grid_constant__ NormBackward args) {                \
    norm_backward<Format::kX>(args);                                                \
  }                                                                                 \
  extern "C" __global__ void __launch_bounds__(kNormSumThreads, kNormSumResident)   \
      norm_backward_partials_##x(const __grid_constant__ NormBackwardSums sums) {   \
    norm_backward_partials<Format::kX>(sums.args, sums.partials);                   \
  }

PLIMSOLL_KERNELS(fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16)

extern "C" __global__ void __launch_bounds__(kNormSumThreads)
    norm_backward_sums(const __grid_constant__ NormBackwardSums sums) {
  const NormBackward& args = sums.args;
  const int64_t count = norm_sum_count(args), blocks = pieces_of(args.rows, kRowBlock);
  const int64_t across = pieces_of(args.cols, kNormSumThreads);
  for (int64_t tile = blockIdx.x; tile < count * across; tile += gridDim.x) {
    const int64_t which = tile / across, col = tile % across * kNormSumThreads + threadIdx.x;
    if (col >= args.cols) continue;
    float* sum = which == 0 && args.dweight != nullptr ? args.dweight : args.dbias;
    sum[col] = sum_blocks_of(sums.partials + which * args.cols + col, blocks, count * args.cols);
  }
}

}  // namespace plimsoll::kernels
