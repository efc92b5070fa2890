// adamw() on a CUDA device: the arguments' pointers are the device's. Queued on the stream. Moments are FP32, and weights FP32 with
// or without a narrow copy: the caller asks for no other kind (has_device_kernel).
#pragma once

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/cuda/device_kernels.h"

namespace plimsoll::kernels {

bool has_device_kernel(const AdamW& args);
void adamw(const AdamW& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
