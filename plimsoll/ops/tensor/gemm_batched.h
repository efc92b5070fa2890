// Matrix products of a batch, as torch.bmm.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

// [batch, m, k] x [batch, k, n] -> [batch, m, n] in the dtype of both, fp32, bf16 or fp16; FP32 sums, one rounding.
// Transposed views are read as they lie. Differentiable, once.
at::Tensor batched_gemm(const at::Tensor& a, const at::Tensor& b);

}  // namespace plimsoll::ops
