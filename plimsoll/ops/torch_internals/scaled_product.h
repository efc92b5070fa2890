// Torch's product of FP8 codes, which has a name of its own for insiders alone.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

// output [m, n] (fp32, bf16, fp16) = (scale_a a) (scale_b b)^T, a [m, k] and b [n, k] of float8_e4m3fn or float8_e5m2, not both of
// the latter, row by row; k and n multiples of 16. Scales: fp32, one each, or [m, 1] and [1, n]. Partial sums are promoted to FP32.
// bias: [n] in the dtype of a narrow output, or undefined; it is added before the rounding.
void scaled_product(at::Tensor& output, const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                    const at::Tensor& scale_b, const at::Tensor& bias = {});

}  // namespace plimsoll::ops
