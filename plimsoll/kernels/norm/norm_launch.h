// Kernels of norm.cu and norm_backward.cu and how they are launched. They take the arguments of norm.h, whose pointers are the device's.
// norm_forward_X_Y has X, the format of x, and Y, that of y, in its name: the same, FP32 or FP8. *amax is not overwritten but raised:
// the caller clears it before. norm_backward_X writes dx, where dy, x and dx have format X. norm_backward_partials_X and then
// norm_backward_sums write dweight and dbias.
#pragma once

#include "plimsoll/kernels/cuda/team_launch.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/kernels/row_blocks.h"

namespace plimsoll::kernels {

// Threads of a multiprocessor, which has 65,536 registers.
constexpr int norm_resident(format::Format x) { return x == format::Format::kFp32 ? 512 : 640; }

// A team takes a row.
constexpr Launch norm_forward_launch(const NormForward& args, int multiprocessors) {
  return team_launch(args.rows, args.cols, args.x_format == format::Format::kFp32 ? 4 : 2, norm_resident(args.x_format),
                     multiprocessors);
}

inline constexpr int kNormBackwardResident = 512;  // threads of a multiprocessor: one holds two rows

// A team takes a row.
constexpr Launch norm_backward_launch(const NormBackward& args, int multiprocessors) {
  return team_launch(args.rows, args.cols, args.x_format == format::Format::kFp32 ? 4 : 2, kNormBackwardResident,
                     multiprocessors);
}

// Sums over rows, by way of partial sums of each block of kRowBlock rows.
struct NormBackwardSums {
  NormBackward args;
  float* partials =
      nullptr;  // [row_blocks(args.rows), norm_sum_count(args), args.cols], memory of the caller; dweight is first
};

PLIMSOLL_HD constexpr int64_t norm_sum_count(const NormBackward& args) {
  return (args.dweight != nullptr ? 1 : 0) + (args.dbias != nullptr ? 1 : 0);
}
constexpr int64_t norm_partial_count(const NormBackward& args) {  // floats
  return row_blocks(args.rows) * norm_sum_count(args) * args.cols;
}

inline constexpr int kNormSumThreads = 128;
// Columns that a block takes of kRowBlock rows: 8 bytes a thread.
PLIMSOLL_HD constexpr int norm_partial_cols(format::Format x) {
  return (x == format::Format::kFp32 ? 2 : 4) * kNormSumThreads;
}

constexpr Launch norm_backward_partials_launch(const NormBackwardSums& sums, int multiprocessors) {
  const NormBackward& args = sums.args;
  const int64_t across = norm_sum_count(args) > 0 ? pieces_of(args.cols, norm_partial_cols(args.x_format)) : 0;
  return launch_over(row_blocks(args.rows) * across, kNormSumThreads, multiprocessors);
}

// A block takes a warp's columns of dweight or dbias.
constexpr Launch norm_backward_sums_launch(const NormBackwardSums& sums, int multiprocessors) {
  return launch_over(norm_sum_count(sums.args) * pieces_of(sums.args.cols, kWarp), kNormSumThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
