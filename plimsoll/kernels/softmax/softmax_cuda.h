// softmax_forward() on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/softmax/softmax.h"

namespace plimsoll::kernels {

void softmax_forward(const SoftmaxForward& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
