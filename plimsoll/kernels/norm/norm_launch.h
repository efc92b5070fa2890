// Kernels of norm.cu and norm_backward.cu and how they are launched. They take the arguments of norm.h, whose pointers are the device's.
// norm_forward_X_Y has X, the format of x, and Y, that of y, in its name: the same, FP32 or FP8. *amax is not overwritten but raised:
// the caller clears it before. norm_backward_X writes dx, where dy, x and dx have format X. norm_backward_partials_X and then
// norm_backward_sums write dweight and dbias.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/kernels/row_blocks.h"

namespace plimsoll::kernels {

inline constexpr int kNormThreads = 256;
inline constexpr int kNormResident = 6;  // blocks of a multiprocessor: for eight the assembler spills
inline constexpr int kNormRun = 4;       // elements that a thread writes at once

// A block takes a row.
constexpr Launch norm_forward_launch(const NormForward& args, int multiprocessors) {
  return launch_over(args.rows, kNormThreads, multiprocessors, kNormResident);
}

inline constexpr int64_t kNormWarpCols = 1024;  // columns that a warp sums
inline constexpr int kNormGradientResident = 5;
inline constexpr int kMostResident = 32;  // blocks of any size: what a multiprocessor of sm_80 and sm_90 can hold

// A block takes a row, with a warp for each 1,024 columns, so that none waits while the others sum.
constexpr Launch norm_backward_launch(const NormBackward& args, int multiprocessors) {
  const int most = kNormThreads / kWarp;
  const int64_t pieces = pieces_of(args.cols, kNormWarpCols);
  const int warps = pieces < 1 ? 1 : pieces < most ? static_cast<int>(pieces) : most;
  const int resident = kNormGradientResident * most / warps;
  return launch_over(args.rows, static_cast<uint32_t>(kWarp * warps), multiprocessors,
                     resident < kMostResident ? resident : kMostResident);
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
inline constexpr int kNormSumResident = 10;
inline constexpr int kNormPartialCols = 2 * kNormSumThreads;

// A block takes two columns a thread of kRowBlock rows.
constexpr Launch norm_backward_partials_launch(const NormBackwardSums& sums, int multiprocessors) {
  const int64_t across = norm_sum_count(sums.args) > 0 ? pieces_of(sums.args.cols, kNormPartialCols) : 0;
  return launch_over(row_blocks(sums.args.rows) * across, kNormSumThreads, multiprocessors, kNormSumResident);
}

// A thread takes a column of dweight or dbias.
constexpr Launch norm_backward_sums_launch(const NormBackwardSums& sums, int multiprocessors) {
  return launch_over(norm_sum_count(sums.args) * pieces_of(sums.args.cols, kNormSumThreads), kNormSumThreads,
                     multiprocessors);
}

}  // namespace plimsoll::kernels
