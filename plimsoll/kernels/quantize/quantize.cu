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

// The first `count` of kRun codes of a run, where column i is multiplied by inv_scale[i] and finite, or NaN where that is 0.
template <Format kX, Format kCode>
__device__ void store_codes(uint8_t* p, int count, bool whole, const RawRun<kX>& x,
                            const float (&inv_scale)[RawRun<kX>::kCount]) {
  constexpr int kRun = RawRun<kX>::kCount;
  Words<kRun> codes;
#pragma unroll
  for (int i = 0; i < kRun; i += 4) {
    const uint32_t low = encode_two_finite<Codec<kCode>>(x[i] * inv_scale[i], x[i + 1] * inv_scale[i + 1]);
    const uint32_t high = encode_two_finite<Codec<kCode>>(x[i + 2] * inv_scale[i + 2], x[i + 3] * inv_scale[i + 3]);
    codes.words[i / 4] = low | high << 16;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t byte = uint32_t{0xff} << (8 * k), nan = uint32_t{kNanCode} << (8 * k);
      if (inv_scale[i + k] == 0.0f) codes.words[i / 4] = (codes.words[i / 4] & ~byte) | nan;
    }
  }
  store_words<kRun>(p, count, whole, codes);
}

// The same under one scale.
template <Format kX, Format kCode>
__device__ void store_codes(uint8_t* p, int count, bool whole, const RawRun<kX>& x, float inv_scale) {
  constexpr int kRun = RawRun<kX>::kCount;
  constexpr uint32_t kNanCodes = 0x01010101u * kNanCode;
  Words<kRun> codes;
#pragma unroll
  for (int i = 0; i < kRun; i += 4) {
    const uint32_t low = encode_two_finite<Codec<kCode>>(x[i] * inv_scale, x[i + 1] * inv_scale);
    const uint32_t high = encode_two_finite<Codec<kCode>>(x[i + 2] * inv_scale, x[i + 3] * inv_scale);
    codes.words[i / 4] = inv_scale != 0.0f ? low | high << 16 : kNanCodes;
  }
  store_words<kRun>(p, count, whole, codes);
}

// Runs of 16 bytes of a row, a block's width apart, which a thread asks for before it waits.
template <Format kX>
struct RowRuns {
  static constexpr int kRun = RawRun<kX>::kCount;
  static constexpr int64_t kTile = kRowTile * kRun;
  RawRun<kX> runs[kRowRuns];

  // tile: its number in the row.
  __device__ static int64_t col_of(int64_t tile, int run) {
    return tile * kTile + (run * kQuantizeThreads + threadIdx.x) * kRun;
  }
  // Whether every thread of the block has all of its runs, and whether none has that one.
  __device__ static bool is_whole(int64_t tile, int64_t cols) { return (tile + 1) * kTile <= cols; }
  __device__ static bool is_past(int64_t tile, int run, int64_t cols) {
    return tile * kTile + run * kQuantizeThreads * kRun >= cols;
  }

  __device__ void read(const Element<kX>* row, int64_t tile, int64_t cols, bool aligned) {
    if (aligned && is_whole(tile, cols)) {
#pragma unroll
      for (int i = 0; i < kRowRuns; ++i) runs[i] = RawRun<kX>::at(row + col_of(tile, i), kRun, true);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRowRuns; ++i) {
      runs[i] = {};
      if (is_past(tile, i, cols)) continue;
      const int64_t col = col_of(tile, i);
      runs[i] = RawRun<kX>::at(row + col, in_reach<kRun>(cols - col), aligned);
    }
  }
  __device__ int32_t largest_code(int32_t code) const {
#pragma unroll
    for (int i = 0; i < kRowRuns * kRun; ++i) code = max(code, runs[i / kRun].magnitude_code(i % kRun));
    return code;
  }

  // inv_scale: of each run, as store_codes() takes it.
  template <Format kCode>
  __device__ void write(uint8_t* row, int64_t tile, int64_t cols, bool aligned,
                        const float (&inv_scale)[kRowRuns]) const {
    if (aligned && is_whole(tile, cols)) {
#pragma unroll
      for (int i = 0; i < kRowRuns; ++i) {
        store_codes<kX, kCode>(row + col_of(tile, i), kRun, true, runs[i], inv_scale[i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kRowRuns; ++i) {
      if (is_past(tile, i, cols)) break;
      const int64_t col = col_of(tile, i);
      const int count = in_reach<kRun>(cols - col);
      store_codes<kX, kCode>(row + col, count, aligned && count == kRun, runs[i], inv_scale[i]);
    }
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
    held.read(x + tiles.row * args.x_stride, tiles.col, cols, aligned);
    code = held.largest_code(code);
  }
  raise_amax<kQuantizeThreads>(RawRun<kX>::magnitude_of(code), args.amax);
}

template <Format kX, Format kCode>
__device__ void quantize_tensor(const QuantizeTensor& args) {
  using Row = RowRuns<kX>;
  constexpr int kRun = Row::kRun;
  const auto* x = static_cast<const Element<kX>*>(args.x);
  const float inv_scale = inv_scale_at(args.scale);
  float inv_scales[kRowRuns];
#pragma unroll
  for (float& one : inv_scales) one = inv_scale;
  const auto [rows, cols] = rows_of(args);
  const bool aligned = is_aligned(x, rows == 1 ? 0 : args.x_stride, kRun);
  const bool aligned_codes = is_aligned(args.codes, rows == 1 ? 0 : args.codes_stride, kRun);
  int32_t amax = 0;
  for (Tiles tiles(rows, pieces_of(cols, Row::kTile)); tiles.is_in(); tiles.advance()) {
    Row held;
    held.read(x + tiles.row * args.x_stride, tiles.col, cols, aligned);
    const int32_t largest = RawRun<kX>::magnitude_of(held.largest_code(0));
    amax = max(amax, largest);
    uint8_t* codes = args.codes + tiles.row * args.codes_stride;
    // False for NaN and Inf, and where the product has no inverse of a scale or is too large itself.
    if (fabsf(__int_as_float(largest) * inv_scale) < __int_as_float(0x7f800000) && inv_scale != 0.0f) {
      held.template write<kCode>(codes, tiles.col, cols, aligned_codes, inv_scales);
      continue;
    }
#pragma unroll 1
    for (int i = 0; i < kRowRuns; ++i) {
      const int64_t col = Row::col_of(tiles.col, i);
      const int count = in_reach<kRun>(cols - col);
      const RawRun<kX> run = RawRun<kX>::at(x + tiles.row * args.x_stride + col, count, aligned && count == kRun);
      float value[kRun];
#pragma unroll
      for (int k = 0; k < kRun; ++k) value[k] = scaled(run[k], inv_scale);
      store_run<kCode, kRun>(codes + col, count, aligned_codes && count == kRun, value);
    }
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
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

// Blocks of 1 x kGroup. Lanes of a group share the work of finding the scales of their runs' groups.
template <Format kX, Format kCode, int kGroup>
__device__ void quantize_groups(const QuantizeBlocks& args) {
  using Row = RowRuns<kX>;
  constexpr int kRun = Row::kRun, kLanes = kGroup / kRun;
  static_assert(kLanes >= kRowRuns && kLanes % kRowRuns == 0);
  const auto* x = static_cast<const Element<kX>*>(args.x);
  const auto [rows, cols] = rows_of(args);
  const bool aligned = is_aligned(x, rows == 1 ? 0 : args.x_stride, kRun);
  const bool aligned_codes = is_aligned(args.codes, rows == 1 ? 0 : args.codes_stride, kRun);
  const int own = threadIdx.x % kRowRuns, lane = threadIdx.x % kLanes;
  int32_t amax = 0;
  for (Tiles tiles(rows, pieces_of(cols, Row::kTile)); tiles.is_in(); tiles.advance()) {
    Row held;
    held.read(x + tiles.row * args.x_stride, tiles.col, cols, aligned);
    int32_t own_amax = 0;
#pragma unroll
    for (int i = 0; i < kRowRuns; ++i) {
      int32_t code = 0;
#pragma unroll
      for (int k = 0; k < kRun; ++k) code = max(code, held.runs[i].magnitude_code(k));
      const int32_t group_amax = RawRun<kX>::magnitude_of(warp_max<kLanes>(code));
      amax = max(amax, group_amax);
      if (i == own) own_amax = group_amax;
    }
    const int64_t own_col = Row::col_of(tiles.col, own);
    const Scale scale = set_scale<Codec<kCode>>(args, own_amax, tiles.row * args.scale_stride + own_col / kGroup,
                                                lane < kRowRuns && own_col - lane * kRun < cols);
    const float own_inv_scale = scale.is_finite ? scale.inv_scale : 0.0f;
    float inv_scale[kRowRuns];
#pragma unroll
    for (int i = 0; i < kRowRuns; ++i) inv_scale[i] = __shfl_sync(kAllLanes, own_inv_scale, i, kRowRuns);
    held.template write<kCode>(args.codes + tiles.row * args.codes_stride, tiles.col, cols, aligned_codes, inv_scale);
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
}

// One scale a row. A row of one tile stays in registers between the search for its amax and the encoding; of a longer one each tile is
// read again, from caches.
template <Format kX, Format kCode>
__device__ void quantize_rows(const QuantizeBlocks& args) {
  using Row = RowRuns<kX>;
  const auto* x = static_cast<const Element<kX>*>(args.x);
  const bool aligned = is_aligned(x, args.x_stride, Row::kRun),
             aligned_codes = is_aligned(args.codes, args.codes_stride, Row::kRun);
  const int64_t across = pieces_of(args.cols, Row::kTile);
  int32_t amax = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    Row held;
    int32_t code = 0;
    for (int64_t tile = 0; tile < across; ++tile) {
      held.read(x + row * args.x_stride, tile, args.cols, aligned);
      code = held.largest_code(code);
    }
    const int32_t row_amax = block_max<kQuantizeThreads>(RawRun<kX>::magnitude_of(code));
    amax = max(amax, row_amax);
    const Scale scale =
        set_scale<Codec<kCode>>(args, row_amax, row * args.scale_stride, threadIdx.x == 0 && args.cols > 0);
    float inv_scale[kRowRuns];
#pragma unroll
    for (float& one : inv_scale) one = scale.is_finite ? scale.inv_scale : 0.0f;
    for (int64_t tile = 0; tile < across; ++tile) {
      if (across > 1) held.read(x + row * args.x_stride, tile, args.cols, aligned);
      held.template write<kCode>(args.codes + row * args.codes_stride, tile, args.cols, aligned_codes, inv_scale);
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

  // inv_scale: one, or one for each column of a run, as store_codes() takes it.
  template <class InvScale>
  __device__ void write(const InvScale& inv_scale) const {
    uint8_t* codes = args.codes + row * args.codes_stride + col;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (i * kStep >= rows) break;
      store_codes<kX, kCode>(codes + i * kStep * args.codes_stride, count, aligned_codes && count == kRun, runs[i],
                             inv_scale);
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
    held.write(scale.is_finite ? scale.inv_scale : 0.0f);
  }
  raise_amax<kQuantizeThreads>(amax, args.amax);
}

// Lanes of a warp stand kColumnLanes side by side, in rows below each other. Of the columns of a lane's runs the lanes above and below
// have each a share whose scales they find.
template <Format kX, Format kCode>
__device__ void quantize_columns(const QuantizeBlocks& args) {
  constexpr int kRun = RawRun<kX>::kCount, kStep = kWarp / kColumnLanes, kRuns = kColumnRows / kStep;
  constexpr int kOwn = kRun / kStep;
  constexpr int64_t kTile = kColumnsTile * kRun;
  HeldRuns<kX, kCode, kRuns, kStep> held(args);
  const int lane = threadIdx.x % kWarp, share = lane / kColumnLanes;
  const int first_col = (threadIdx.x / kWarp * kColumnLanes + lane % kColumnLanes) * kRun;
  int32_t amax = 0;
  for (Tiles tiles(pieces_of(args.rows, kColumnRows), pieces_of(args.cols, kTile)); tiles.is_in(); tiles.advance()) {
    held.read(tiles.row * kColumnRows + share, tiles.col * kTile + first_col);
    int32_t own_code[kOwn] = {};
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      int32_t code = 0;
#pragma unroll
      for (int i = 0; i < kRuns; ++i) code = max(code, held.runs[i].magnitude_code(k));
#pragma unroll
      for (int distance = kColumnLanes; distance < kWarp; distance *= 2) {
        code = max(code, __shfl_xor_sync(kAllLanes, code, distance));
      }
      if (k / kOwn == share) own_code[k % kOwn] = code;
    }
    float own_inv_scale[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int32_t column_amax = RawRun<kX>::magnitude_of(own_code[i]);
      amax = max(amax, column_amax);
      const int k = share * kOwn + i;
      const int64_t index = tiles.row * args.scale_stride + held.col + k;
      const Scale scale = set_scale<Codec<kCode>>(args, column_amax, index, k < held.count);
      own_inv_scale[i] = scale.is_finite ? scale.inv_scale : 0.0f;
    }
    float inv_scale[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      inv_scale[k] = __shfl_sync(kAllLanes, own_inv_scale[k % kOwn], k / kOwn * kColumnLanes + lane % kColumnLanes);
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
#define PLIMSOLL_KERNELS(x, kX, code, kCode)                                                                        \
  PLIMSOLL_KERNEL(quantize_tensor_##x##_##code, QuantizeTensor, quantize_tensor<Format::kX, Format::kCode>)         \
  PLIMSOLL_KERNEL(quantize_groups128_##x##_##code, QuantizeBlocks, quantize_groups<Format::kX, Format::kCode, 128>) \
  PLIMSOLL_KERNEL(quantize_groups32_##x##_##code, QuantizeBlocks, quantize_groups<Format::kX, Format::kCode, 32>)   \
  PLIMSOLL_KERNEL(quantize_rows_##x##_##code, QuantizeBlocks, quantize_rows<Format::kX, Format::kCode>)             \
  PLIMSOLL_KERNEL(quantize_squares_##x##_##code, QuantizeBlocks, quantize_squares<Format::kX, Format::kCode>)       \
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
