// dequantize() on a CUDA device: the arguments' pointers are the device's, of E4M3 or E5M2 codes. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/dequantize/dequantize.h"

namespace plimsoll::kernels {

void dequantize(const Dequantize& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
