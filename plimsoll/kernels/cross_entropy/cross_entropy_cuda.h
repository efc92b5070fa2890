// cross_entropy() on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cross_entropy/cross_entropy.h"
#include "plimsoll/kernels/cuda/device_kernels.h"

namespace plimsoll::kernels {

void cross_entropy(const CrossEntropy& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
