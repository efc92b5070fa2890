// Kernels of softmax.cu and how they are launched. softmax_forward_X has X, the format of x and y, in its name, and takes the
// arguments of softmax.h, whose pointers are the device's.
#pragma once

#include "plimsoll/kernels/cuda/team_launch.h"
#include "plimsoll/kernels/softmax/softmax.h"

namespace plimsoll::kernels {

inline constexpr int kSoftmaxResident = 512;  // threads of a multiprocessor: one holds 64 exponentials

// A team takes a row.
constexpr Launch softmax_forward_launch(const SoftmaxForward& args, int multiprocessors) {
  const SoftmaxShape& shape = args.shape;
  return team_launch(shape.batch * shape.heads * shape.queries, shape.keys,
                     args.format == format::Format::kFp32 ? 4 : 2, kSoftmaxResident, multiprocessors);
}

}  // namespace plimsoll::kernels
