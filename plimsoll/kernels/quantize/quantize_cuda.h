// Quantization on a CUDA device: the arguments' pointers are the device's, without sums and statistics. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/quantize/block_scale.h"
#include "plimsoll/kernels/quantize/quantize.h"

namespace plimsoll::kernels {

void amax(const Amax& args, const cuda::Stream& stream);
void set_tensor_scale(const TensorScale& args, const cuda::Stream& stream);
void quantize_tensor(const QuantizeTensor& args, const cuda::Stream& stream);

// Whether blocks of this extent have a kernel: 1 x 32, 32 x 1, 1 x 128, 128 x 128 and whole rows.
bool has_device_kernel(const QuantizeBlocks& args);
void quantize_blocks(const QuantizeBlocks& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
