// Kernels of dequantize.cu and how they are launched. dequantize_C_Y has C, the format of the codes, and Y, that of the output, in
// its name, and takes the arguments of dequantize.h, whose pointers are the device's.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/dequantize/dequantize.h"

namespace plimsoll::kernels {

inline constexpr int kDequantizeThreads = 256;
inline constexpr int kDequantizeBlocks = 6;  // on a multiprocessor: 1,536 threads fit on each
inline constexpr int kDequantizeRuns = 4;    // of a thread, which asks for all before it waits

// The matrix as rows that the kernel takes: without gaps between them, and under one scale, they are one.
struct DequantizeRows {
  int64_t rows, cols;
};
PLIMSOLL_HD constexpr DequantizeRows dequantize_rows(const Dequantize& args) {
  const bool is_dense = args.codes_stride == args.cols && args.output_stride == args.cols;
  const bool has_one_scale = args.scale.data == nullptr || (args.scale.block_rows == 0 && args.scale.block_cols == 0);
  if (is_dense && has_one_scale) return {1, args.rows * args.cols};
  return {args.rows, args.cols};
}

// Elements of a run: 16 bytes of the output.
PLIMSOLL_HD constexpr int dequantize_run(format::Format output) { return output == format::Format::kFp32 ? 4 : 8; }
PLIMSOLL_HD constexpr int dequantize_tile(format::Format output) {
  return kDequantizeThreads * kDequantizeRuns * dequantize_run(output);
}

constexpr Launch dequantize_launch(const Dequantize& args, int multiprocessors) {
  const DequantizeRows shape = dequantize_rows(args);
  return launch_over(shape.rows * pieces_of(shape.cols, dequantize_tile(args.output_format)), kDequantizeThreads,
                     multiprocessors, kDequantizeBlocks);
}

}  // namespace plimsoll::kernels
