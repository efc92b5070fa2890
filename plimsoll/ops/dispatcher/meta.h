// Results of the Meta kernels: shapes and dtypes, no values.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace plimsoll::ops {

// On the device of `like`. From Python, any number may come as a dtype.
inline at::Tensor empty_meta(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  TORCH_CHECK(dtype >= at::ScalarType::Byte && dtype < at::ScalarType::Undefined, "expected a dtype, got number ",
              static_cast<int>(dtype));
  return at::empty_symint(sizes, like.options().dtype(dtype));
}

// Dense, of the sizes of `like`.
inline at::Tensor empty_like_dense(const at::Tensor& like, at::ScalarType dtype) {
  return empty_meta(like.sym_sizes(), like, dtype);
}

// Everything before the last dimension is one.
inline c10::SymInt rows_of(const at::Tensor& x) {
  c10::SymInt rows = 1;
  for (int64_t dim = 0; dim < x.dim() - 1; ++dim) rows = rows * x.sym_size(dim);
  return rows;
}

}  // namespace plimsoll::ops
