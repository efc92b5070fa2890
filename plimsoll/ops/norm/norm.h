// LayerNorm and RMSNorm over the last dimension, optionally after a residual addition. Differentiable once.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>

#include "plimsoll/kernels/norm/norm.h"

namespace plimsoll::ops {

struct NormOptions {
  kernels::NormKind kind = kernels::NormKind::kLayerNorm;
  bool zero_centered = false;  // the weight is stored minus one
  double epsilon = 1e-5;
};

// Operands of a norm.
struct NormInput {
  at::Tensor x;              // [..., dim]
  at::Tensor residual = {};  // undefined, or the shape and dtype of x: x + residual is normalised
  at::Tensor weight;         // [dim]
  at::Tensor bias = {};      // [dim] or undefined; LayerNorm only
};

struct NormOutput {
  at::Tensor output;
  at::Tensor sum = {};  // x + residual in the dtype of x, differentiable; undefined without a residual
};

// FP32 inside; output in `dtype`, by default that of x. Saved: what was normalised, and one mean and rstd a row.
NormOutput norm(const NormInput& input, const NormOptions& options, std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace plimsoll::ops
