// Activations on a CUDA device. What an element becomes stands in activation_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/activation/activation_launch.h"
#include "plimsoll/kernels/cuda/amax.cuh"
#include "plimsoll/kernels/cuda/elements.cuh"
#include "plimsoll/kernels/cuda/row_blocks.cuh"
#include "plimsoll/kernels/inv_scale.h"

namespace plimsoll::kernels {
namespace {

// A matrix that is read or written: its elements at one place of each row.
template <Format kFormat, int kRun>
struct Column {
  using T = Element<kFormat>;
  T* data;
  int64_t stride;
  bool aligned;

  template <class Pointer>
  __device__ static Column of(Pointer data, int64_t offset, int64_t stride) {
    T* first = const_cast<T*>(static_cast<const T*>(data)) + offset;
    return {first, stride, is_aligned(first, stride, kRun)};
  }
  __device__ void read(int64_t row, int64_t col, int64_t count, float (&x)[kRun]) const {
    load_run<kFormat, kRun>(data + row * stride + col, count, count >= kRun && aligned, x);
  }
  // FP8: scaled. Returns the amax of x with `amax`.
  __device__ int32_t write(int64_t row, int64_t col, int64_t count, float (&x)[kRun], float inv_scale,
                           int32_t amax) const {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i < count) amax = max(amax, magnitude(x[i]));
      if constexpr (format::is_fp8(kFormat)) x[i] *= inv_scale;
    }
    store_run<kFormat, kRun>(data + row * stride + col, count, count >= kRun && aligned, x);
    return amax;
  }
};

template <Format kX, Format kY>
__device__ void activation_forward(const ActivationForward& args, const ActivationCurve& curve) {
  constexpr int kRun = kActivationRun;
  const bool gated = curve.gated;
  const int64_t rows = gated ? args.rows : 1, cols = gated ? args.cols : args.rows * args.cols;
  const auto x = Column<kX, kRun>::of(args.x, 0, gated ? 2 * cols : cols);
  const auto value = Column<kX, kRun>::of(args.x, cols, 2 * cols);
  const auto y = Column<kY, kRun>::of(args.y, 0, cols);
  const float inv_scale = inv_scale_at(args.scale);
  const int64_t across = pieces_of(cols, kActivationTile);
  int32_t amax = 0;
  for (int64_t tile = blockIdx.x; tile < rows * across; tile += gridDim.x) {
    const int64_t row = tile / across, col = tile % across * kActivationTile + threadIdx.x * kRun;
    const int64_t count = cols - col;
    if (count <= 0) continue;
    float gate[kRun], factor[kRun];
    x.read(row, col, count, gate);
    if (gated) value.read(row, col, count, factor);
    with_function(curve, [&](auto function) {
#pragma unroll
      for (float& one : gate) one = function(one);
    });
    if (gated) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) gate[i] *= gated_value_of(curve, factor[i]);
    }
    amax = y.write(row, col, count, gate, inv_scale, amax);
  }
  raise_amax<kActivationThreads>(amax, args.amax);
}

// Sums of dx over the rows of a block, of a thread's columns.
__device__ void add_to(float (&sum)[kGradientRun], const float (&dx)[kGradientRun]) {
#pragma unroll
  for (int i = 0; i < kGradientRun; ++i) sum[i] += dx[i];
}

template <Format kX, Format kDx>
__device__ void activation_backward(const ActivationBackward& args, const ActivationCurve& curve, float* partials) {
  constexpr int kRun = kGradientRun;
  const bool gated = curve.gated, summed = args.column_sum != nullptr, by_row = gated || summed;
  const int64_t rows = by_row ? args.rows : 1, cols = by_row ? args.cols : args.rows * args.cols;
  const int64_t width = gated ? 2 * cols : cols, tile_rows = summed ? kRowBlock : 1;
  const auto x = Column<kX, kRun>::of(args.x, 0, width), value = Column<kX, kRun>::of(args.x, cols, width);
  const auto dy = Column<kX, kRun>::of(args.dy, 0, cols);
  const auto dx = Column<kDx, kRun>::of(args.dx, 0, width), dvalue = Column<kDx, kRun>::of(args.dx, cols, width);
  const float inv_scale = inv_scale_at(args.scale);
  const int64_t across = pieces_of(cols, kGradientTile), tiles = pieces_of(rows, tile_rows) * across;
  int32_t amax = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t block = tile / across, col = tile % across * kGradientTile + threadIdx.x * kRun;
    const int64_t count = cols - col, end = min((block + 1) * tile_rows, rows);
    if (count <= 0) continue;
    float dx_sum[kRun] = {}, dvalue_sum[kRun] = {};
    for (int64_t row = block * tile_rows; row < end; ++row) {
      float gate[kRun], factor[kRun], gradient[kRun];
      x.read(row, col, count, gate);
      dy.read(row, col, count, gradient);
      if (gated) {
        value.read(row, col, count, factor);
        with_gradient(curve, [&](auto both) {
#pragma unroll
          for (int i = 0; i < kRun; ++i) {
            const ValueAndGradient at = both(gate[i]);
            gate[i] = gradient[i] * gated_value_of(curve, factor[i]) * at.gradient;
            factor[i] = gated_gradient_of(curve, factor[i], gradient[i] * at.value);
          }
        });
        add_to(dvalue_sum, factor);
        amax = dvalue.write(row, col, count, factor, inv_scale, amax);
      } else {
        with_gradient(curve, [&](auto both) {
#pragma unroll
          for (int i = 0; i < kRun; ++i) gate[i] = gradient[i] * both(gate[i]).gradient;
        });
      }
      add_to(dx_sum, gate);
      amax = dx.write(row, col, count, gate, inv_scale, amax);
    }
    if (summed) {
      const auto partial = Column<Format::kFp32, kRun>::of(partials, 0, width);
      partial.write(block, col, count, dx_sum, 1.0f, 0);
      if (gated) Column<Format::kFp32, kRun>::of(partials, cols, width).write(block, col, count, dvalue_sum, 1.0f, 0);
    }
  }
  raise_amax<kActivationThreads>(amax, args.amax);
}

}  // namespace

#define PLIMSOLL_FORWARD(x, kX, y, kY)                                                                                \
  extern "C" __global__ void __launch_bounds__(kActivationThreads, kActivationResident) activation_forward_##x##_##y( \
      const __grid_constant__ ActivationForward args, const __grid_constant__ ActivationCurve curve) {                \
    activation_forward<Format::kX, Format::kY>(args, curve);                                                          \
  }
#define PLIMSOLL_BACKWARD(x, kX, y, kY)                                                               \
  extern "C" __global__ void __launch_bounds__(kActivationThreads, kGradientResident)                 \
      activation_backward_##x##_##y(const __grid_constant__ ActivationBackward args,                  \
                                    const __grid_constant__ ActivationCurve curve, float* partials) { \
    activation_backward<Format::kX, Format::kY>(args, curve, partials);                               \
  }
#define PLIMSOLL_KERNELS(x, kX)        \
  PLIMSOLL_FORWARD(x, kX, x, kX)       \
  PLIMSOLL_FORWARD(x, kX, e4m3, kE4m3) \
  PLIMSOLL_FORWARD(x, kX, e5m2, kE5m2) \
  PLIMSOLL_BACKWARD(x, kX, x, kX) PLIMSOLL_BACKWARD(x, kX, e4m3, kE4m3) PLIMSOLL_BACKWARD(x, kX, e5m2, kE5m2)

PLIMSOLL_KERNELS(fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16)
PLIMSOLL_FORWARD(bf16, kBf16, fp32, kFp32)
PLIMSOLL_FORWARD(fp16, kFp16, fp32, kFp32)

extern "C" __global__ void __launch_bounds__(kActivationSumThreads)
    activation_backward_sums(const __grid_constant__ ActivationBackward args,
                             const __grid_constant__ ActivationCurve curve, float* partials) {
  const int64_t width = curve.gated ? 2 * args.cols : args.cols, blocks = pieces_of(args.rows, kRowBlock);
  for (int64_t tile = blockIdx.x; tile * kActivationSumThreads < width; tile += gridDim.x) {
    const int64_t col = tile * kActivationSumThreads + threadIdx.x;
    if (col < width) args.column_sum[col] = sum_blocks_of(partials + col, blocks, width);
  }
}

}  // namespace plimsoll::kernels
