// What the Meta kernels answer with: shapes and dtypes, no values.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

namespace plimsoll::ops {

// On the device of `like`.
inline at::Tensor empty_meta(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty_symint(sizes, like.options().dtype(dtype));
}

}  // namespace plimsoll::ops
