// Dequantization on a CUDA device. What an element becomes stands in dequantize_element.h.
#include "plimsoll/kernels/cuda/packed_run.cuh"
#include "plimsoll/kernels/cuda/tiles.cuh"
#include "plimsoll/kernels/dequantize/dequantize_element.h"
#include "plimsoll/kernels/dequantize/dequantize_launch.h"

namespace plimsoll::kernels {
namespace {

__device__ bool is_power_of_two_or_zero(int64_t x) { return (x & (x - 1)) == 0; }

// The scale of the run at a place: one of the whole matrix, or those of blocks whose sizes are powers of two.
struct OneScale {
  float scale;
  __device__ explicit OneScale(const ScaleView& view) : scale(scale_in_memory(view, 0, 0)) {}
  __device__ float operator()(int64_t, int64_t) const { return scale; }
};
template <Format kScale>
struct BlockScales {
  const ScaleView& view;
  int row_shift, col_shift;

  // A whole extent has index 0, as has a shift by all bits.
  __device__ static int shift_of(int64_t block) { return block == 0 ? 63 : __ffsll(block) - 1; }
  __device__ explicit BlockScales(const ScaleView& scales)
      : view(scales), row_shift(shift_of(scales.block_rows)), col_shift(shift_of(scales.block_cols)) {}
  __device__ float operator()(int64_t row, int64_t col) const {
    const int64_t index = (row >> row_shift) * view.row_stride + (col >> col_shift) * view.col_stride;
    if constexpr (kScale == Format::kFp32) {
      return static_cast<const float*>(view.data)[index];
    } else {
      return format::E8m0::decode(static_cast<const uint8_t*>(view.data)[index]);
    }
  }
};

template <Format kCode, Format kY>
struct Dequantization {
  using Y = Element<kY>;
  static constexpr int kRun = dequantize_run(kY), kTile = dequantize_tile(kY), kStep = kDequantizeThreads * kRun;

  const Dequantize& args;

  __device__ void run() const {
    const ScaleView& view = args.scale;
    const Kind kind = kind_of_scales();
    const OneScale one(view);
    const DequantizeRows shape = dequantize_rows(args);
    for (Tiles tiles(shape.rows, pieces_of(shape.cols, kTile)); tiles.is_in(); tiles.advance()) {
      const int64_t col = tiles.col * kTile + threadIdx.x * kRun, left = shape.cols - col;
      const int count = static_cast<int>(left < kTile ? left : kTile);
      uint32_t rest = (1u << kDequantizeRuns) - 1;
      if (kind == Kind::kOne) rest = run_tile(one, tiles.row, col, count);
      if (kind == Kind::kFp32) rest = run_tile(BlockScales<Format::kFp32>(view), tiles.row, col, count);
      if (kind == Kind::kE8m0) rest = run_tile(BlockScales<Format::kE8m0>(view), tiles.row, col, count);
      if (rest != 0) run_elements(tiles.row, col, count, rest);
    }
  }

 private:
  enum class Kind : int { kOne, kFp32, kE8m0, kAny };

  // kAny: runs may be misaligned, or have several scales.
  __device__ Kind kind_of_scales() const {
    const ScaleView& view = args.scale;
    const bool by_runs = is_aligned(args.codes, args.codes_stride, kRun) &&
                         is_aligned(static_cast<const Y*>(args.output), args.output_stride, kRun) &&
                         view.block_cols % kRun == 0 && is_power_of_two_or_zero(view.block_rows) &&
                         is_power_of_two_or_zero(view.block_cols) && view.format != Format::kE4m3;
    if (!by_runs) return Kind::kAny;
    if (view.data == nullptr || (view.block_rows == 0 && view.block_cols == 0)) return Kind::kOne;
    return view.format == Format::kE8m0 ? Kind::kE8m0 : Kind::kFp32;
  }

  // Runs of a tile that are all there. Returns a bit for each of the others and of those that have a NaN.
  template <class Scales>
  __device__ uint32_t run_tile(const Scales& scales, int64_t row, int64_t col, int count) const {
    if (count > kTile - kStep + kRun - 1) return whole<kDequantizeRuns>(scales, row, col);
    uint32_t rest = 0;
#pragma unroll 1
    for (int i = 0; i * kStep < count; ++i) {
      const uint32_t others = count - i * kStep < kRun ? 1 : whole<1>(scales, row, col + i * kStep);
      rest |= others << i;
    }
    return rest;
  }

  // kRuns runs, kStep apart. Returns a bit for each that has a NaN, which has a code of its own in each format.
  template <int kRuns, class Scales>
  __device__ uint32_t whole(const Scales& scales, int64_t row, int64_t col) const {
    const uint8_t* codes = args.codes + row * args.codes_stride + col;
    Y* output = static_cast<Y*>(args.output) + row * args.output_stride + col;
    PackedRun<kCode, kRun> runs[kRuns];
    float scale[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) runs[i] = PackedRun<kCode, kRun>::at(codes + i * kStep);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) scale[i] = scales(row, col + i * kStep);
    uint32_t with_nan = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      float value[kRun];
      runs[i].decode(value);
      bool is_nan = false;
#pragma unroll
      for (float& one : value) {
        one *= scale[i];
        is_nan |= one != one;
      }
      with_nan |= is_nan ? 1u << i : 0;
      PackedRun<kY, kRun>::of(value).store(output + i * kStep);
    }
    return with_nan;
  }

  // Elements of the runs of a tile that have a bit in `runs`, one by one.
  __device__ void run_elements(int64_t row, int64_t col, int count, uint32_t runs) const {
    const int64_t block_rows = args.scale.block_rows, block_cols = args.scale.block_cols;
    const int64_t block_row = block_rows > 0 ? row / block_rows : 0;
#pragma unroll 1
    for (int i = 0; i < kDequantizeRuns * kRun; ++i) {
      const int step = i / kRun * kStep + i % kRun;
      if (step >= count || (runs >> (i / kRun) & 1) == 0) continue;
      const int64_t at = col + step;
      const float scale = scale_in_memory(args.scale, block_row, block_cols > 0 ? at / block_cols : 0);
      const float decoded = Codec<kCode>::decode(args.codes[row * args.codes_stride + at]);
      const float y[2] = {dequantized(decoded, scale), 0.0f};
      store_run<kY, 2>(static_cast<Y*>(args.output) + row * args.output_stride + at, 1, false, y);
    }
  }
};

}  // namespace

#define PLIMSOLL_KERNEL(code, kCode, y, kY)                                           \
  extern "C" __global__ void __launch_bounds__(kDequantizeThreads, kDequantizeBlocks) \
      dequantize_##code##_##y(const __grid_constant__ Dequantize args) {              \
    Dequantization<Format::kCode, Format::kY>{args}.run();                            \
  }

PLIMSOLL_KERNEL(e4m3, kE4m3, fp32, kFp32)
PLIMSOLL_KERNEL(e4m3, kE4m3, bf16, kBf16)
PLIMSOLL_KERNEL(e4m3, kE4m3, fp16, kFp16)
PLIMSOLL_KERNEL(e5m2, kE5m2, fp32, kFp32)
PLIMSOLL_KERNEL(e5m2, kE5m2, bf16, kBf16)
PLIMSOLL_KERNEL(e5m2, kE5m2, fp16, kFp16)

}  // namespace plimsoll::kernels
