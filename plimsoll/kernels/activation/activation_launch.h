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

inline constexpr int kActivationThreads = 256;
inline constexpr int kActivationResident = 6;  // blocks of a multiprocessor: as many as registers bear without spills
inline constexpr int kActivationRun = 8;       // elements of a thread: 16 bytes of a 16-bit format
inline constexpr int kActivationTile = kActivationThreads * kActivationRun;
inline constexpr int kGradientResident = 5;
inline constexpr int kGradientRun = 4;
inline constexpr int kGradientTile = kActivationThreads * kGradientRun;

constexpr Launch activation_forward_launch(const ActivationForward& args, int multiprocessors) {
  // Without a gate the rows are one.
  const int64_t tiles = is_gated(args.activation.kind) ? args.rows * pieces_of(args.cols, kActivationTile)
                                                       : pieces_of(args.rows * args.cols, kActivationTile);
  return launch_over(tiles, kActivationThreads, multiprocessors, kActivationResident);
}

constexpr Launch activation_backward_launch(const ActivationBackward& args, int multiprocessors) {
  const int64_t across = pieces_of(args.cols, kGradientTile);
  const int64_t tiles = args.column_sum != nullptr       ? row_blocks(args.rows) * across
                        : is_gated(args.activation.kind) ? args.rows * across
                                                         : pieces_of(args.rows * args.cols, kGradientTile);
  return launch_over(tiles, kActivationThreads, multiprocessors, kGradientResident);
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
