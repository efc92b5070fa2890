// Small results of devices, which the host reads together.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace plimsoll::ops {

// Copies of one-dimensional tensors on the host, each with its dtype: the host waits for each device once, with all its
// streams, and host_reads() counts one. Where a device has several dtypes, the bytes of each tensor are a multiple of 16,
// so that no copy begins inside an element.
std::vector<at::Tensor> read_together(at::TensorList tensors);

// Reads so far, of all threads. One read may bring many numbers.
int64_t host_reads();

}  // namespace plimsoll::ops
