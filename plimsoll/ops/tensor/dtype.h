// Torch's scalar types and our formats.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/ScalarType.h>

#include <string_view>

#include "plimsoll/format/format.h"

namespace plimsoll::ops {

// kFloat, kBFloat16, kHalf; any other type is an error that names op.
format::Format format_of(at::ScalarType dtype, const char* op);

// Defined, on the CPU, and of one of these types; an error that names op and tensor otherwise. Returns its format.
format::Format check_values(const at::Tensor& tensor, const char* op, const char* name);
// The same on the CPU or on a CUDA device.
format::Format check_device_values(const at::Tensor& tensor, const char* op, const char* name);

// Torch's type for fp32, bf16 and fp16; codes (E4M3, E5M2) are kByte.
at::ScalarType dtype_of(format::Format format);

// "fp32", "bf16", "fp16", "e4m3" or "e5m2".
format::Format parse_format(std::string_view name, const char* op);

// Two sizes of at least 0; 0 stands for the whole extent.
void check_block(at::IntArrayRef block, const char* op);

// As torch::nn::Linear does: everything before the last dimension is one. [in] becomes [1, in]. Contiguous.
at::Tensor as_matrix(const at::Tensor& x, const char* op);

}  // namespace plimsoll::ops
