// A transpose in memory of its own.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

// [cols, rows] of a matrix whose elements have 1, 2 or 4 bytes.
at::Tensor transposed(const at::Tensor& x);

}  // namespace plimsoll::ops
