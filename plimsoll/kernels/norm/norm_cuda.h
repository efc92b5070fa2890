// Norms on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/norm/norm_launch.h"

namespace plimsoll::kernels {

// y: the format of x, FP32 or codes.
void norm_forward(const NormForward& args, const cuda::Stream& stream);
// dy, x and dx have one format.
void norm_backward(const NormBackwardSums& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
