// The data structure of the library: value = scale * code, with everything needed to read it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/scale_view.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

struct ScaledTensor {
  // [rows, cols], contiguous: uint8 codes; or fp32, bf16, fp16 values, and then scale is undefined. E2M1 codes: two a
  // byte, [rows, ceil(cols / 2)], or, turned, [cols, ceil(rows / 2)].
  at::Tensor data;
  // fp32, or uint8 exponents for E8M0: [ceil(rows / block_rows), ceil(cols / block_cols)]. E2M1 codes: the tensor
  // scale, fp32 [1] or [rows], undefined: 1.
  at::Tensor scale = {};
  format::Format format = format::Format::kFp32;
  recipe::Granularity granularity = {};  // of data as it is stored
  format::Format scale_format = format::Format::kFp32;
  // E2M1 codes alone. uint8, E4M3 or E8M0, [blocks down, blocks across] of the matrix that `data` holds, any strides;
  // undefined where the codes are packed, with their scales among them.
  at::Tensor block_scale = {};
  bool turned = false;  // data holds the codes of the transpose
  int64_t length = 0;   // elements of a line of data; rotated ones are rounded up to whole groups

  bool has_codes() const { return format::is_code(format); }
  // Extents of the matrix, whatever holds it. Turned and rotated: rows are rounded up.
  int64_t rows() const { return turned ? length : data.size(0); }
  int64_t cols() const { return turned ? data.size(0) : format == format::Format::kE2m1 ? length : data.size(1); }
};

// Values without codes.
ScaledTensor plain_values(at::Tensor values, format::Format format);

enum class Use : uint8_t { kAsStored, kTransposed };

// For a kernel that reads the matrix as it is stored, or transposed.
kernels::ScaleView scale_view(const ScaledTensor& tensor, Use use);

// Rows and columns of the scale of a [rows, cols] tensor.
std::array<int64_t, 2> scale_shape(recipe::Granularity granularity, int64_t rows, int64_t cols);

// [rows, cols] of kFloat, kBFloat16 or kHalf; one rounding.
at::Tensor dequantize(const ScaledTensor& tensor, at::ScalarType dtype);

}  // namespace plimsoll::ops
