// transpose() on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {

void transpose(const Transpose& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
