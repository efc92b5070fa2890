// A ScaledTensor as the operand of a GEMM.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"

namespace plimsoll::ops {

// The logical [rows, k] matrix of a stored tensor, or of its transpose, as the GEMM reads it. Not on a device.
struct GemmMatrix {
  kernels::GemmOperand operand = {};
  int64_t rows = 0, k = 0;
};
GemmMatrix gemm_matrix(const ScaledTensor& tensor, Use use);

}  // namespace plimsoll::ops
