// Memory of packed weights. A step of generation reads all of them once: on pages of 4 KiB a tenth of it is waiting for
// page tables, and most weights are smaller than a huge page.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::nn {

// uint8 [bytes], 64-byte aligned, uninitialised: a part of a block on huge pages, where the system has them, that
// weights packed one after another share and that goes back to the system with the last of them. Safe to use from
// several threads.
at::Tensor weight_memory(int64_t bytes);

}  // namespace plimsoll::nn
