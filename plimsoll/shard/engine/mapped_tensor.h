// Tensors that the file system holds: their memory is a mapped file without a name, which ends with them. The system
// reads from it what is used and may write back and drop the rest.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>

namespace plimsoll::shard {

// Zeros. Throws c10::Error where the folder's file system has no room; the room is taken now.
at::Tensor mapped_zeros(at::IntArrayRef sizes, at::ScalarType dtype, const std::filesystem::path& folder);

// Announces that such a tensor, or a part of one, will be used soon (nothing happens to others): its file is read while
// the caller goes on.
void expect_pages(const at::Tensor& tensor);
// Announces that the tensor will not be used for a while: it leaves this process's memory. The file keeps what it
// holds.
void release_pages(const at::Tensor& tensor);

}  // namespace plimsoll::shard
