// Kernels of cross_entropy.cu and how they are launched. cross_entropy_X has X, the format of the logits, in its name, and takes the
// arguments of cross_entropy.h, whose pointers are the device's.
#pragma once

#include "plimsoll/kernels/cross_entropy/cross_entropy.h"
#include "plimsoll/kernels/cuda/team_launch.h"

namespace plimsoll::kernels {

inline constexpr int kCrossEntropyResident = 768;  // threads of a multiprocessor: one holds 128 bytes of logits

// A team takes a row.
constexpr Launch cross_entropy_launch(const CrossEntropy& args, int multiprocessors) {
  return team_launch(args.rows, args.vocabulary, args.format == format::Format::kFp32 ? 4 : 2, kCrossEntropyResident,
                     multiprocessors);
}

}  // namespace plimsoll::kernels
