// Memory of packed weights. A step of generation reads all of them once: on pages of 4 KiB a tenth of it is waiting for
// page tables, and most weights are smaller than a huge page.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

// uint8 [bytes], 64-byte aligned, uninitialised: a part of a block that weights packed one after another share and that
// goes back to the system with the last of them. Safe to use from several threads.
at::Tensor weight_memory(int64_t bytes);

// From now on the system may put it on huge pages; the first token does not wait for them.
void weight_is_written(const at::Tensor& memory);

}  // namespace plimsoll::ops
