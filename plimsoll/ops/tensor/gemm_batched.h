// Matrix products of tensors as they lie, one or a batch, as torch.mm and torch.bmm.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/kernels/gemm/gemm.h"

namespace plimsoll::ops {

// [batch, m, k] x [batch, k, n] -> [batch, m, n] in the dtype of both, fp32, bf16 or fp16; FP32 sums, one rounding.
// Transposed views are read as they lie. Differentiable, once.
at::Tensor batched_gemm(const at::Tensor& a, const at::Tensor& b);

// Whether the rows or the columns of the last two dimensions lie one after the other, as the kernel needs it.
bool is_readable(const at::Tensor& x);

// x as the kernels read it where it lies, readable; its format may be that of codes. dims: those of x that stand for an operand's rows and k.
struct OperandDims {
  int64_t row, k;
};
kernels::GemmOperand operand_as_stored(const at::Tensor& x, OperandDims dims, format::Format format);

// output = alpha * a b + bias. All of one dtype, [m, k] x [k, n] or with a batch before; a and b readable, output contiguous.
struct StoredProduct {
  const at::Tensor& a;
  const at::Tensor& b;
  const at::Tensor& output;
  float alpha = 1.0f;
  at::Tensor bias = {};     // [n], fp32, contiguous; optional
  bool accumulate = false;  // adds to what is in the output
};
void multiply_as_stored(const StoredProduct& product);

}  // namespace plimsoll::ops
