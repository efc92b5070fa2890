// Kernels of quantize.cu and how they are launched. A kernel of amax_X, quantize_tensor_X_C, quantize_groups_X_C,
// quantize_rows_X_C, quantize_squares_X_C or quantize_columns_X_C has X, the format of x, and C, that of the codes, in its name,
// and takes the arguments of quantize.h, whose pointers are the device's. *amax is not overwritten but raised: the caller clears
// it before. Sums and statistics are not computed. tensor_scale takes block_scale.h's TensorScale.
#pragma once

#include "plimsoll/format/host_device.h"
#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/quantize/quantize.h"

namespace plimsoll::kernels {

inline constexpr int kQuantizeThreads = 256;
inline constexpr int kRowRuns = 4;      // of 16 bytes: what a thread asks for before it waits
inline constexpr int kSquare = 128;     // rows and columns of a square block
inline constexpr int kColumnRows = 32;  // of a block that is one column wide
inline constexpr int kColumnLanes = 8;  // of a warp side by side, with 16 bytes each: 128 bytes of a row

// Matrix as rows that amax, quantize_tensor and quantize_groups take: without gaps between them they are one.
struct Rows {
  int64_t rows, cols;
};
PLIMSOLL_HD constexpr Rows rows_of(const Amax& args) {
  if (args.x_stride == args.cols) return {1, args.rows * args.cols};
  return {args.rows, args.cols};
}
PLIMSOLL_HD constexpr Rows rows_of(const QuantizeTensor& args) {
  if (args.x_stride == args.cols && args.codes_stride == args.cols) return {1, args.rows * args.cols};
  return {args.rows, args.cols};
}

// Blocks of one row, none of which is cut off at a row's end.
PLIMSOLL_HD constexpr Rows rows_of(const QuantizeBlocks& args) {
  const bool dense = args.x_stride == args.cols && args.codes_stride == args.cols;
  if (dense && args.block_cols > 0 && args.scale_stride * args.block_cols == args.cols)
    return {1, args.rows * args.cols};
  return {args.rows, args.cols};
}

// Elements in 16 bytes.
constexpr int64_t wide_run(format::Format x_format) { return 16 / format::bytes(x_format); }

inline constexpr int kRowTile = kQuantizeThreads * kRowRuns;  // in wide runs, of a row
constexpr Launch rows_launch(const Rows& shape, format::Format x_format, int multiprocessors) {
  const int64_t tile = kRowTile * wide_run(x_format);
  return launch_over(shape.rows * pieces_of(shape.cols, tile), kQuantizeThreads, multiprocessors);
}
constexpr Launch amax_launch(const Amax& args, int multiprocessors) {
  return rows_launch(rows_of(args), args.x_format, multiprocessors);
}
constexpr Launch quantize_tensor_launch(const QuantizeTensor& args, int multiprocessors) {
  return rows_launch(rows_of(args), args.x_format, multiprocessors);
}

inline constexpr Launch kTensorScaleLaunch = {1, 1};

// Blocks of 1 x 128 (quantize_groups128) and 1 x 32 (quantize_groups32).
constexpr Launch quantize_groups_launch(const QuantizeBlocks& args, int multiprocessors) {
  return rows_launch(rows_of(args), args.x_format, multiprocessors);
}

// Whole rows.
constexpr Launch quantize_rows_launch(const QuantizeBlocks& args, int multiprocessors) {
  return launch_over(args.rows, kQuantizeThreads, multiprocessors);
}

// Blocks of 128 x 128.
constexpr Launch quantize_squares_launch(const QuantizeBlocks& args, int multiprocessors) {
  return launch_over(pieces_of(args.rows, kSquare) * pieces_of(args.cols, kSquare), kQuantizeThreads, multiprocessors);
}

// Blocks of 32 x 1.
inline constexpr int kColumnsTile = kQuantizeThreads / kWarp * kColumnLanes;  // in wide runs
constexpr Launch quantize_columns_launch(const QuantizeBlocks& args, int multiprocessors) {
  return launch_over(pieces_of(args.rows, kColumnRows) * pieces_of(args.cols, kColumnsTile * wide_run(args.x_format)),
                     kQuantizeThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
