// Quantization on a CUDA device. What an element and a scale become stands in quantize_element.h and block_scale.h.
#include "plimsoll/kernels/cuda/amax.cuh"
#include "plimsoll/kernels/cuda/elements.cuh"
#include "plimsoll/kernels/cuda/raw_run.cuh"
#include "plimsoll/kernels/cuda/tiles.cuh"
#include "plimsoll/kernels/inv_scale.h"
#include "plimsoll/kernels/quantize/block_scale.h"
#include "plimsoll/kernels/quantize/quantize_element.h"
#include "plimsoll/kernels/quantize/quantize_launch.h"

namespace plimsoll::kernels {
namespace {

// One run of elements: reads it, or scales and writes it.
template <Format kX, Format kCode, int kRun>
struct Run {
  const Element<kX>* x;
  uint8_t* codes;
  int64_t count;  // elements that are there
  bool whole_x, whole_codes;

  template <class Args>
  __device__ static Run at(const Args& args, int64_t row, int64_t col, int64_t end) {
    const auto* x = static_cast<const Element<kX>*>(args.x);
    const int64_t count = end - col < 0 ? 0 : end - col;
    return {x + row * args.x_stride + col, args.codes + row * args.codes_stride + col, count,
            count >= kRun && is_aligned(x, args.x_stride, kRun),
            count >= kRun && is_aligned(args.codes, args.codes_stride, kRun)};
  }

  __device__ void read(float (&value)[kRun]) const { load_run<kX, kRun>(x, count, whole_x, value); }
  __device__ void write(const float (&value)[kRun], float inv_scale) const {
    float y[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) y[i] = scaled(value[i], inv_scale);
    store_run<kCode, kRun>(codes, count, whole_codes, y);
  }
  __device__ void write_nan() const {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i < count) codes[i] = kNanCode;
    }
  }
};

// Runs of 16 bytes of a row, a block's width apart, which a thread asks for before it waits.
template <Format kX>
struct RowRuns {
  static constexpr int kRun = RawRun<kX>::kCount;
  static constexpr int64_t kTile = kRowTile * kRun;
  RawRun<kX> runs[kRowRuns];

  __device__ static int64_t col_of(const Tiles& tiles, int run) {
    return tiles.col * kTile + (run * kQuantizeThreads + threadIdx.x) * kRun;
  }
  __device__ void read(const Element<kX>* row, const Tiles& tiles, int64_t cols, bool aligned) {
#pragma unroll
    for (int i = 0; i < kRowRuns; ++i) {
      const int64_t col = col_of(tiles, i);
      runs[i] = RawRun<kX>::at(row + col, in_reach<kRun>(cols - col), aligned);
    }
  }
  __device__ int32_t largest_code(int32_t code) const {
#pragma unroll
    for (int i = 0; i < kRowRuns * kRun; ++i) code = max(code, runs[i / kRun].magnitude_code(i % kRun));
    return code;
  }
};

template <Format kX>
__device__ void find_amax(const Amax& args) {
  const auto* x = static_cast<const Element<kX>*>(args.x);
  const auto [rows, cols] = rows_of(args);
  const bool aligned = is_aligned(x, rows == 1 ? 0 : args.x_stride, RowRuns<kX>::kRun);
  int32_t code = 0;
  for (Tiles tiles(rows, pieces_of(cols, RowRuns<kX>::kTile)); tiles.is_in(); tiles.advance()) {
    RowRuns<kX> held;
    held.read(x + tiles.row * args.x_stride, tiles, cols, aligned);
    code = held.largest_code(code);
  }
  raise_amax<kQuantizeThreads>(RawRun<kX>::magnitude_of(code), args.amax);
}

template <Format kX, Format kCode>
__device__ void quantize_tensor(const QuantizeTensor& args) {
  constexpr int kRun = RowRuns<kX>::kRun;
  const auto* x = static_cast<const Element<kX>*>(args.x);
  const float inv_scale = inv_scale_at(args.scale);
  const auto [rows, cols] = rows_of(args);
  const bool aligned = is_aligned(x, rows == 1 ? 0 : args.x_stride, kRun);
  const bool aligned_codes = is_aligned(args.codes, rows == 1 ? 0 : args.codes_stride, kRun);
  int32_t code = 0;
  for (Tiles tiles(rows, pieces_of(cols, RowRuns<kX>::kTile)); tiles.is_in(); tiles.advance()) {
    RowRuns<kX> held;
    held.read(x + tiles.row * args.x_stride, tiles, cols, aligned);
    code = held.largest_code(code);
    uint8_t* codes = args.codes + tiles.row * args.codes_stride;
#pragma unroll
    for (int i = 0; i < kRowRuns; ++i) {
      const int64_t col = RowRuns<kX>::col_of(tiles, i);
      const int count = in_reach<kRun>(cols - col);
      float value[kRun];
#pragma unroll
      for (int k = 0; k < kRun; ++k) value[k] = scaled(held.runs[i][k], inv_scale);
      store_run<kCode, kRun>(codes + col, count, aligned_codes && count == kRun, value);
    }
  }
  raise_amax<kQuantizeThreads>(RawRun<kX>::magnitude_of(code), args.amax);
}

struct Scale {
  float inv_scale;
  bool is_finite;
};

// Writes the scale of the block with this amax, if `writes`.
template <class Fp8>
__device__ Scale set_scale(const QuantizeBlocks& args, int32_t amax, int64_t index, bool writes) {
  constexpr float kLargest = Fp8::kMaxFinite;
  const bool is_finite = amax < 0x7f800000;
  if (args.scale_format == Format::kE8m0) {
    const uint8_t code = format::E8m0::from_amax(__int_as_float(amax), kLargest, args.rounding);
    if (writes) static_cast<uint8_t*>(args.scale)[index] = code;
    return {format::E8m0::decode_inverse(code), is_finite};
  }
  const float scale = fp32_block_scale(__int_as_float(amax), kLargest, args.power_of_two);
  if (writes) static_cast<float*>(args.scale)[index] = scale;
  return {1.0f / scale, is_finite};
}

// Blocks of 1 x (4 kLanes).
template <Format kX, Format kCode, int kLanes>
__device__ void quantize_groups(const QuantizeBlocks& args) {
  constexpr int kTile = kQuantizeThreads * kGroupRun;
  const int64_t across = pieces_of(args.cols, kTile);
  int32_t amax = 0;
  for (int64_t tile = blockIdx.x; tile < args.rows * across; tile += gridDim.x) {
    const int64_t row = tile / across, col = tile % across * kTile + threadIdx.x * kGroupRun;
    const auto run = Run<kX, kCode, kGroupRun>::at(args, row, col, args.cols);
    float value[kGroupRun];
    run.read(value);
    const int32_t group_amax = warp_max<kLanes>(amax_of(0, value));
    amax = max(amax, group_amax);
    const bool writes = threadIdx.x % kLanes == 0 && run.count > 0;
    const int64_t index = row * args.scale_stride + col / (kGroupRun * kLanes);
    const Scale scale = set_scale<Codec<kCode>>(args, group_amax, index, writes);
    if (scale.is_finite) {
      run.write(value, scale.inv_scale);
    } else {
      run.write_nan();
    }
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
}

template <Format kX, Format kCode>
__device__ void quantize_rows(const QuantizeBlocks& args) {
  int32_t amax = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    int32_t row_amax = 0;
    for (int64_t col = threadIdx.x * kQuantizeRun; col < args.cols; col += kQuantizeTile) {
      float value[kQuantizeRun];
      Run<kX, kCode, kQuantizeRun>::at(args, row, col, args.cols).read(value);
      row_amax = amax_of(row_amax, value);
    }
    row_amax = block_max<kQuantizeThreads>(row_amax);
    amax = max(amax, row_amax);
    const Scale scale =
        set_scale<Codec<kCode>>(args, row_amax, row * args.scale_stride, threadIdx.x == 0 && args.cols > 0);
    for (int64_t col = threadIdx.x * kQuantizeRun; col < args.cols; col += kQuantizeTile) {
      const auto run = Run<kX, kCode, kQuantizeRun>::at(args, row, col, args.cols);
      float value[kQuantizeRun];
      run.read(value);
      if (scale.is_finite) {
        run.write(value, scale.inv_scale);
      } else {
        run.write_nan();
      }
    }
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
}

// Blocks of several rows. A thread holds kRuns runs of 16 bytes, kStep rows apart, between the search for the amax and the
// encoding, so that memory is read once.
template <Format kX, Format kCode, int kRuns, int kStep>
struct HeldRuns {
  static constexpr int kRun = RawRun<kX>::kCount;
  const QuantizeBlocks& args;
  bool aligned, aligned_codes;
  int64_t row = 0, col = 0;  // of the first run
  int rows = 0;              // that are there from it on
  int count = 0;             // elements of a run that are there
  RawRun<kX> runs[kRuns];

  __device__ explicit HeldRuns(const QuantizeBlocks& blocks)
      : args(blocks),
        aligned(is_aligned(static_cast<const Element<kX>*>(args.x), args.x_stride, kRun)),
        aligned_codes(is_aligned(args.codes, args.codes_stride, kRun)) {}

  __device__ void read(int64_t first_row, int64_t first_col) {
    row = first_row;
    col = first_col;
    rows = in_reach<kRuns * kStep>(args.rows - row);
    count = in_reach<kRun>(args.cols - col);
    const auto* x = static_cast<const Element<kX>*>(args.x) + row * args.x_stride + col;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      runs[i] = RawRun<kX>::at(x + i * kStep * args.x_stride, i * kStep < rows ? count : 0, aligned);
    }
  }

  // Codes of all runs, where column i of a run has inv_scale[i], or is NaN where that is 0.
  __device__ void write(const float (&inv_scale)[kRun]) const {
    uint8_t* codes = args.codes + row * args.codes_stride + col;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (i * kStep >= rows) break;
      float value[kRun];
#pragma unroll
      for (int k = 0; k < kRun; ++k) value[k] = scaled_in_block(runs[i][k], inv_scale[k]);
      store_run<kCode, kRun>(codes + i * kStep * args.codes_stride, count, aligned_codes && count == kRun, value);
    }
  }
};

template <Format kX, Format kCode>
__device__ void quantize_squares(const QuantizeBlocks& args) {
  constexpr int kRun = RawRun<kX>::kCount, kLanes = kSquare / kRun, kStep = kQuantizeThreads / kLanes;
  constexpr int kRuns = kSquare / kStep;
  HeldRuns<kX, kCode, kRuns, kStep> held(args);
  int32_t amax = 0;
  for (Tiles squares(pieces_of(args.rows, kSquare), pieces_of(args.cols, kSquare)); squares.is_in();
       squares.advance()) {
    held.read(squares.row * kSquare + threadIdx.x / kLanes, squares.col * kSquare + threadIdx.x % kLanes * kRun);
    int32_t code = 0;
#pragma unroll
    for (int i = 0; i < kRuns * kRun; ++i) code = max(code, held.runs[i / kRun].magnitude_code(i % kRun));
    const int32_t square_amax = RawRun<kX>::magnitude_of(block_max<kQuantizeThreads>(code));
    amax = max(amax, square_amax);
    const int64_t index = squares.row * args.scale_stride + squares.col;
    const Scale scale = set_scale<Codec<kCode>>(args, square_amax, index, threadIdx.x == 0);
    float inv_scale[kRun];
#pragma unroll
    for (float& one : inv_scale) one = scale.is_finite ? scale.inv_scale : 0.0f;
    held.write(inv_scale);
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
}

// Lanes of a warp stand kColumnLanes side by side, in rows below each other.
template <Format kX, Format kCode>
__device__ void quantize_columns(const QuantizeBlocks& args) {
  constexpr int kRun = RawRun<kX>::kCount, kStep = kWarp / kColumnLanes, kRuns = kColumnRows / kStep;
  constexpr int64_t kTile = kColumnsTile * kRun;
  HeldRuns<kX, kCode, kRuns, kStep> held(args);
  const int lane = threadIdx.x % kWarp;
  const int first_col = (threadIdx.x / kWarp * kColumnLanes + lane % kColumnLanes) * kRun;
  int32_t amax = 0;
  for (Tiles tiles(pieces_of(args.rows, kColumnRows), pieces_of(args.cols, kTile)); tiles.is_in(); tiles.advance()) {
    held.read(tiles.row * kColumnRows + lane / kColumnLanes, tiles.col * kTile + first_col);
    float inv_scale[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      int32_t code = 0;
#pragma unroll
      for (int i = 0; i < kRuns; ++i) code = max(code, held.runs[i].magnitude_code(k));
#pragma unroll
      for (int distance = kColumnLanes; distance < kWarp; distance *= 2) {
        code = max(code, __shfl_xor_sync(kAllLanes, code, distance));
      }
      const int32_t column_amax = RawRun<kX>::magnitude_of(code);
      amax = max(amax, column_amax);
      const bool writes = lane < kColumnLanes && k < held.count;
      const Scale scale =
          set_scale<Codec<kCode>>(args, column_amax, tiles.row * args.scale_stride + held.col + k, writes);
      inv_scale[k] = scale.is_finite ? scale.inv_scale : 0.0f;
    }
    held.write(inv_scale);
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
}

}  // namespace

#define PLIMSOLL_KERNEL(name, args, ...)                                                                \
  extern "C" __global__ void __launch_bounds__(kQuantizeThreads) name(const __grid_constant__ args a) { \
    __VA_ARGS__(a);                                                                                     \
  }
#define PLIMSOLL_KERNELS(x, kX, code, kCode)                                                                       \
  PLIMSOLL_KERNEL(quantize_tensor_##x##_##code, QuantizeTensor, quantize_tensor<Format::kX, Format::kCode>)        \
  PLIMSOLL_KERNEL(quantize_groups128_##x##_##code, QuantizeBlocks, quantize_groups<Format::kX, Format::kCode, 32>) \
  PLIMSOLL_KERNEL(quantize_groups32_##x##_##code, QuantizeBlocks, quantize_groups<Format::kX, Format::kCode, 8>)   \
  PLIMSOLL_KERNEL(quantize_rows_##x##_##code, QuantizeBlocks, quantize_rows<Format::kX, Format::kCode>)            \
  PLIMSOLL_KERNEL(quantize_squares_##x##_##code, QuantizeBlocks, quantize_squares<Format::kX, Format::kCode>)      \
  PLIMSOLL_KERNEL(quantize_columns_##x##_##code, QuantizeBlocks, quantize_columns<Format::kX, Format::kCode>)

PLIMSOLL_KERNEL(amax_fp32, Amax, find_amax<Format::kFp32>)
PLIMSOLL_KERNEL(amax_bf16, Amax, find_amax<Format::kBf16>)
PLIMSOLL_KERNEL(amax_fp16, Amax, find_amax<Format::kFp16>)
extern "C" __global__ void __launch_bounds__(1) tensor_scale(const __grid_constant__ TensorScale a) {
  set_tensor_scale(a);
}

PLIMSOLL_KERNELS(fp32, kFp32, e4m3, kE4m3)
PLIMSOLL_KERNELS(bf16, kBf16, e4m3, kE4m3)
PLIMSOLL_KERNELS(fp16, kFp16, e4m3, kE4m3)
PLIMSOLL_KERNELS(fp32, kFp32, e5m2, kE5m2)
PLIMSOLL_KERNELS(bf16, kBf16, e5m2, kE5m2)
PLIMSOLL_KERNELS(fp16, kFp16, e5m2, kE5m2)

}  // namespace plimsoll::kernels
