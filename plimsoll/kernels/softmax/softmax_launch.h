// Kernels of softmax.cu and how they are launched. softmax_forward_X has X, the format of x and y, in its name, and takes the
// arguments of softmax.h, whose pointers are the device's.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/softmax/softmax.h"

namespace plimsoll::kernels {

inline constexpr int kSoftmaxThreads = 256;
inline constexpr int kSoftmaxRun = 4;  // elements that a thread writes at once

// A block takes a row.
constexpr Launch softmax_forward_launch(const SoftmaxForward& args, int multiprocessors) {
  const SoftmaxShape& shape = args.shape;
  return launch_over(shape.batch * shape.heads * shape.queries, kSoftmaxThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
