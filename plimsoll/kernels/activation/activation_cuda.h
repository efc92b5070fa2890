// Activations on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/activation/activation_launch.h"
#include "plimsoll/kernels/cuda/device_kernels.h"

namespace plimsoll::kernels {

// y: the format of x, FP32 or codes.
void activation_forward(const ActivationForward& args, const cuda::Stream& stream);
// x and dy have one format; dx: that, or codes. partials: activation_partial_count(args) floats of the device.
void activation_backward(const ActivationBackward& args, float* partials, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
