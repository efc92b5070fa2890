// Matrices of E4M3 codes in a file, as the values that they stand for.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <string>

#include "plimsoll/app/checkpoint/four_bits.h"
#include "plimsoll/app/checkpoint/tensor_statistics.h"

namespace plimsoll::app {

// A matrix with a scale for the tensor, for each row or for each block of 128 x 128 (docs/quantized_files.md).
struct Fp8Matrix {
  at::Tensor codes;                        // E4M3 [rows, cols]
  at::Tensor scale;                        // fp32 [1, 1], [rows, 1] or [rows / 128, cols / 128], rounded up
  int64_t scale_rows = 0, scale_cols = 0;  // elements that have a scale in common
};

// The tensor X.weight with X.weight_scale or X.weight_scale_inv. None for others, and where shapes or dtypes are not those of
// a layout.
std::optional<Fp8Matrix> fp8_matrix(const std::string& name, const at::Tensor& tensor, const FindTensor& find);

TensorStatistics statistics_of(const Fp8Matrix& matrix);

}  // namespace plimsoll::app
