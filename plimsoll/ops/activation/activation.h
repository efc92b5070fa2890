// Activations, gated ones too. "gelu" is the tanh form, "gelu_erf" the exact one. Differentiable once.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string_view>

#include "plimsoll/kernels/activation/activation.h"

namespace plimsoll::ops {

// x [..., dim]; gated ones return [..., dim / 2], act(x[..., :half]) * x[..., half:]. Result in the dtype of x.
at::Tensor activation(const at::Tensor& x, kernels::Activation kind);

// The names of kernels::kActivations; an error that lists them otherwise.
kernels::Activation parse_activation(std::string_view text);
std::string_view name(kernels::Activation kind);

}  // namespace plimsoll::ops
