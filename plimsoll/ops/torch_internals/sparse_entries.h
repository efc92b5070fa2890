// The entries of a sparse tensor that may have several for one place. The public values() and indices() want a coalesced
// tensor, and coalesce() copies, and adds up in the tensor's own dtype. Declared alike in torch 2.11 and 2.13.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>

namespace plimsoll::ops {

// In memory of the tensor's own: what is written there is written into it.
inline at::Tensor entries_of(const at::Tensor& sparse) { return sparse._values(); }

// `values`, one for each entry of `sparse`; those of one place added up, in the dtype of `values`.
inline at::Tensor sums_of_places(const at::Tensor& sparse, const at::Tensor& values) {
  return at::_sparse_coo_tensor_unsafe(sparse._indices(), values, sparse.sizes()).coalesce().values();
}

}  // namespace plimsoll::ops
