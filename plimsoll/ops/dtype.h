// Torch's scalar types and our formats.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/ScalarType.h>

#include "plimsoll/format/format.h"

namespace plimsoll::ops {

// kFloat, kBFloat16, kHalf; any other type is an error that names op.
format::Format format_of(at::ScalarType dtype, const char* op);

// Of fp32, bf16, fp16; codes (E4M3, E5M2) are kByte.
at::ScalarType dtype_of(format::Format format);

// As torch::nn::Linear does: everything before the last dimension is one. [in] becomes [1, in]. Contiguous.
at::Tensor as_matrix(const at::Tensor& x, const char* op);

}  // namespace plimsoll::ops
