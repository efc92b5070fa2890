// activation() in terms of torch's operators, for tensors without memory of their own.
#pragma once

#include "plimsoll/ops/activation/activation.h"

namespace plimsoll::ops {

at::Tensor composed_activation(const at::Tensor& x, const kernels::ActivationSpec& spec);

}  // namespace plimsoll::ops
