// Kernels of quantize.cu and how they are launched. A kernel of quantize_tensor_X_C, quantize_groups_X_C or quantize_rows_X_C
// has X, the format of x, and C, that of the codes, in its name, and takes the arguments of quantize.h, whose pointers are the
// device's. *amax is not overwritten but raised: the caller clears it before. Sums and statistics are not computed.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/quantize/quantize.h"

namespace plimsoll::kernels {

inline constexpr int kQuantizeThreads = 256;
inline constexpr int kQuantizeRun = 8;  // elements of a thread: 16 bytes of a 16-bit format
inline constexpr int kQuantizeTile = kQuantizeThreads * kQuantizeRun;
inline constexpr int kGroupRun = 4;  // a warp has one group of 128, or four of 32

constexpr Launch quantize_tensor_launch(const QuantizeTensor& args, int multiprocessors) {
  return launch_over(args.rows * pieces_of(args.cols, kQuantizeTile), kQuantizeThreads, multiprocessors);
}

// Blocks of 1 x 128 (quantize_groups128) and 1 x 32 (quantize_groups32).
constexpr Launch quantize_groups_launch(const QuantizeBlocks& args, int multiprocessors) {
  return launch_over(args.rows * pieces_of(args.cols, kQuantizeThreads * kGroupRun), kQuantizeThreads, multiprocessors);
}

// Whole rows.
constexpr Launch quantize_rows_launch(const QuantizeBlocks& args, int multiprocessors) {
  return launch_over(args.rows, kQuantizeThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
