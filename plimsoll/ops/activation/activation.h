// Activations, gated ones too. "gelu" is the tanh form, "gelu_erf" the exact one. Differentiable once.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <string_view>
#include <vector>

#include "plimsoll/kernels/activation/activation.h"

namespace plimsoll::ops {

// x [..., dim]; gated ones return [..., dim / 2], act(x[..., :half]) * x[..., half:]. Result in the dtype of x.
at::Tensor activation(const at::Tensor& x, const kernels::ActivationSpec& spec);

// The names of kernels::kActivations; an error that lists them otherwise.
kernels::Activation parse_activation(std::string_view text);
std::string_view name(kernels::Activation kind);

// parameters: in the order of the kind's row; empty: at their defaults. An error that names the one that makes no sense.
kernels::ActivationSpec activation_spec(kernels::Activation kind, at::ArrayRef<double> parameters);
// All of them, as it takes them.
std::vector<double> parameters_of(const kernels::ActivationSpec& spec);

}  // namespace plimsoll::ops
