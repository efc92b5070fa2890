// The memory of a tensor, which may go and come back while the tensor and the views of it stay; and what tells that it
// was written.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/DeviceGuard.h>

namespace plimsoll::shard {

// Uninitialised, of the size that the tensor was made with, for the current stream of its device.
inline void allocate_memory(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());  // allocators take the current device
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

// Nobody may read it before the next allocate_memory().
inline void free_memory(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

inline uint32_t version_of(const at::Tensor& tensor) { return static_cast<uint32_t>(tensor._version()); }

}  // namespace plimsoll::shard
