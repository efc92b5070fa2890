// linear() in terms of torch's operators, for tensors without memory of their own: each operator is then computed as
// their owner says.
#pragma once

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::ops {

// Under recipes of high precision in FP32 alone.
at::Tensor composed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const LinearScaling& scaling);

}  // namespace plimsoll::ops
