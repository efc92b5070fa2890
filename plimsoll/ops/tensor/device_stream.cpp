#include "plimsoll/ops/tensor/device_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace plimsoll::ops {

kernels::cuda::Stream device_stream(at::Device device) {
  TORCH_INTERNAL_ASSERT(device.is_cuda());
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return {.handle = stream.native_handle(),
          .device = device.index(),
          .multiprocessors = kernels::cuda::multiprocessors_of(device.index())};
}

}  // namespace plimsoll::ops
