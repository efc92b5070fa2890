// Kernels of activation.cu and how they are launched. activation_forward_X_Y has X, the format of x, and Y, that of y, in its
// name: the same, FP32 or FP8; activation_backward_X_Y has that of x and dy, and that of dx: the same or FP8. They take the
// arguments of activation.h, whose pointers are the device's, and the curve that activation_curve makes of their activation.
// *amax is not overwritten but raised: the caller clears it before.
//
// activation_backward_X_Y writes partial sums if args.column_sum is there, and activation_backward_sums, which takes the same
// arguments, adds them. partials: [row_blocks(rows), columns of x], memory of the caller; nullptr without column_sum.
#pragma once

#include "plimsoll/kernels/activation/activation_element.h"
#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/row_blocks.h"

namespace plimsoll::kernels {

// Blocks on a multiprocessor: so many that all are there at once, and threads have the registers that they need.
inline constexpr int kActivationThreads = 256, kActivationBlocks = 6;
inline constexpr int kGradientThreads = 128, kGradientBlocks = 4;

// Elements of a thread: 16 bytes of the wider format.
PLIMSOLL_HD constexpr int activation_run(format::Format x_format, format::Format y_format) {
  return x_format == format::Format::kFp32 || y_format == format::Format::kFp32 ? 4 : 8;
}
PLIMSOLL_HD constexpr int activation_tile(format::Format x_format, format::Format y_format) {
  return kActivationThreads * activation_run(x_format, y_format);
}
// Fewer beside sums of columns, which stay in registers.
PLIMSOLL_HD constexpr int gradient_run(format::Format x_format, format::Format dx_format, bool summed) {
  return summed ? 4 : activation_run(x_format, dx_format);
}
PLIMSOLL_HD constexpr int gradient_tile(format::Format x_format, format::Format dx_format, bool summed) {
  return kGradientThreads * gradient_run(x_format, dx_format, summed);
}

constexpr Launch activation_forward_launch(const ActivationForward& args, int multiprocessors) {
  const int tile = activation_tile(args.x_format, args.y_format);
  // Without a gate the rows are one.
  const int64_t tiles =
      is_gated(args.activation.kind) ? args.rows * pieces_of(args.cols, tile) : pieces_of(args.rows * args.cols, tile);
  return launch_over(tiles, kActivationThreads, multiprocessors, kActivationBlocks);
}

constexpr Launch activation_backward_launch(const ActivationBackward& args, int multiprocessors) {
  const int tile = gradient_tile(args.x_format, args.dx_format, args.column_sum != nullptr);
  const int64_t across = pieces_of(args.cols, tile);
  const int64_t tiles = args.column_sum != nullptr       ? row_blocks(args.rows) * across
                        : is_gated(args.activation.kind) ? args.rows * across
                                                         : pieces_of(args.rows * args.cols, tile);
  return launch_over(tiles, kGradientThreads, multiprocessors, kGradientBlocks);
}

constexpr int64_t activation_x_cols(const ActivationBackward& args) {
  return is_gated(args.activation.kind) ? 2 * args.cols : args.cols;
}
constexpr int64_t activation_partial_count(const ActivationBackward& args) {  // floats
  return args.column_sum != nullptr ? row_blocks(args.rows) * activation_x_cols(args) : 0;
}

inline constexpr int kActivationSumThreads = 128;

// A thread takes a column.
constexpr Launch activation_backward_sums_launch(const ActivationBackward& args, int multiprocessors) {
  return launch_over(args.column_sum != nullptr ? pieces_of(activation_x_cols(args), kActivationSumThreads) : 0,
                     kActivationSumThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
