// The data structure of the library: value = scale * code, with everything needed to read it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/scale_view.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

struct ScaledTensor {
  at::Tensor data;  // [rows, cols], contiguous: uint8 codes; or fp32, bf16, fp16 values, and then scale is undefined
  // fp32, or uint8 exponents for E8M0: [ceil(rows / block_rows), ceil(cols / block_cols)]. E2M1 codes stand in packed
  // weights alone, with the scales of their blocks; this is the tensor scale then, fp32 [1] or [rows], undefined: 1.
  at::Tensor scale = {};
  format::Format format = format::Format::kFp32;
  recipe::Granularity granularity = {};  // of data as it is stored
  format::Format scale_format = format::Format::kFp32;

  bool has_codes() const { return format::is_code(format); }
};

// Values without codes.
ScaledTensor plain_values(at::Tensor values, format::Format format);

enum class Use : uint8_t { kAsStored, kTransposed };

// For a kernel that reads data as it is stored, or as the transposed matrix.
kernels::ScaleView scale_view(const ScaledTensor& tensor, Use use);

// Rows and columns of the scale of a [rows, cols] tensor.
std::array<int64_t, 2> scale_shape(recipe::Granularity granularity, int64_t rows, int64_t cols);

// [rows, cols] of kFloat, kBFloat16 or kHalf; one rounding.
at::Tensor dequantize(const ScaledTensor& tensor, at::ScalarType dtype);

}  // namespace plimsoll::ops
