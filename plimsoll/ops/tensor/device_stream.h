// CUDA streams for kernels, as torch has them. Nothing of CUDA is linked: a torch without it has no tensors there.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/DeviceGuard.h>

#include "plimsoll/kernels/cuda/device_kernels.h"

namespace plimsoll::ops {

// The current stream of a CUDA device.
kernels::cuda::Stream device_stream(at::Device device);

// queue(stream), with the current stream of the tensor's CUDA device and that device as the thread's.
template <class Queue>
void on_stream_of(const at::Tensor& tensor, Queue queue) {
  const c10::DeviceGuard guard(tensor.device());
  queue(device_stream(tensor.device()));
}

// run() for a tensor on the CPU, run(stream) as above for one on a CUDA device:
//   on_device_of(x, [&](auto... stream) { kernels::amax(args, stream...); });
template <class Run>
void on_device_of(const at::Tensor& tensor, Run run) {
  if (tensor.device().is_cpu()) {
    run();
  } else {
    on_stream_of(tensor, run);
  }
}

}  // namespace plimsoll::ops
