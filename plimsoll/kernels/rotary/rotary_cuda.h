// rotary() on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/rotary/rotary.h"

namespace plimsoll::kernels {

void rotary(const Rotary& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
