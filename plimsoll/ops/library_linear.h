// torch.ops.plimsoll.linear: without codes and without state, made of ops that compilers see.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>

namespace plimsoll::ops {

// Computes in dtype, by default that of the weight. Differentiable once.
at::Tensor linear_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     std::optional<at::ScalarType> dtype);

}  // namespace plimsoll::ops
