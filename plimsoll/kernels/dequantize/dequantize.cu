// Dequantization on a CUDA device. What an element becomes stands in dequantize_element.h.
#include "plimsoll/kernels/cuda/elements.cuh"
#include "plimsoll/kernels/dequantize/dequantize_element.h"
#include "plimsoll/kernels/dequantize/dequantize_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kRun = kDequantizeRun;

// Scales of neighbouring elements of a row, from column `col` on.
__device__ void load_scales(const ScaleView& view, int64_t row, int64_t col, int64_t count, float (&scale)[kRun]) {
  const int64_t block_row = view.block_rows > 0 ? row / view.block_rows : 0, block_cols = view.block_cols;
  if (block_cols % kRun == 0) {
    const float shared = scale_in_memory(view, block_row, block_cols > 0 ? col / block_cols : 0);
#pragma unroll
    for (float& one : scale) one = shared;
    return;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) scale[i] = i < count ? scale_in_memory(view, block_row, (col + i) / block_cols) : 1.0f;
}

template <Format kCode, Format kY>
__device__ void dequantize(const Dequantize& args) {
  auto* output = static_cast<Element<kY>*>(args.output);
  const bool aligned = is_aligned(args.codes, args.codes_stride, kRun);
  const bool aligned_output = is_aligned(output, args.output_stride, kRun);
  const int64_t across = pieces_of(args.cols, kDequantizeTile);
  for (int64_t tile = blockIdx.x; tile < args.rows * across; tile += gridDim.x) {
    const int64_t row = tile / across, col = tile % across * kDequantizeTile + threadIdx.x * kRun;
    const int64_t count = args.cols - col;
    if (count <= 0) continue;
    float value[kRun], scale[kRun];
    load_run<kCode, kRun>(args.codes + row * args.codes_stride + col, count, count >= kRun && aligned, value);
    load_scales(args.scale, row, col, count, scale);
#pragma unroll
    for (int i = 0; i < kRun; ++i) value[i] = dequantized(value[i], scale[i]);
    store_run<kY, kRun>(output + row * args.output_stride + col, count, count >= kRun && aligned_output, value);
  }
}

}  // namespace

#define PLIMSOLL_KERNEL(code, kCode, y, kY)                              \
  extern "C" __global__ void __launch_bounds__(kDequantizeThreads)       \
      dequantize_##code##_##y(const __grid_constant__ Dequantize args) { \
    dequantize<Format::kCode, Format::kY>(args);                         \
  }

PLIMSOLL_KERNEL(e4m3, kE4m3, fp32, kFp32)
PLIMSOLL_KERNEL(e4m3, kE4m3, bf16, kBf16)
PLIMSOLL_KERNEL(e4m3, kE4m3, fp16, kFp16)
PLIMSOLL_KERNEL(e5m2, kE5m2, fp32, kFp32)
PLIMSOLL_KERNEL(e5m2, kE5m2, bf16, kBf16)
PLIMSOLL_KERNEL(e5m2, kE5m2, fp16, kFp16)

}  // namespace plimsoll::kernels
