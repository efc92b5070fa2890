// y = x weight^T + bias with every product under the recipe. Differentiable once.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::ops {

// x [..., in], weight [out, in], bias [out] or undefined, each fp32, bf16 or fp16. Returns [..., out] in the recipe's
// high-precision format. Gradients have the dtype of their tensor. Saved for backward: the codes of x (one byte an
// element; the values where the recipe has no codes), or x itself as SaveInput says, and the codes of the weight. Bits
// do not depend on the number of threads.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LinearScaling& scaling);

}  // namespace plimsoll::ops
