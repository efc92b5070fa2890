// Kernels of norm.cu and how they are launched. norm_forward_X_Y has X, the format of x, and Y, that of y, in its name: the same,
// or FP8. It takes the arguments of norm.h, whose pointers are the device's. *amax is not overwritten but raised: the caller
// clears it before.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/norm/norm.h"

namespace plimsoll::kernels {

inline constexpr int kNormThreads = 256;
inline constexpr int kNormResident = 6;  // blocks of a multiprocessor: for eight the assembler spills
inline constexpr int kNormRun = 4;       // elements that a thread writes at once

// A block takes a row.
constexpr Launch norm_forward_launch(const NormForward& args, int multiprocessors) {
  return launch_over(args.rows, kNormThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
