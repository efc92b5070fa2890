// The norm kernels on tensors: what norm(), norm_linear() and norm_mlp() have in common.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/norm/norm.h"
#include "plimsoll/ops/tensor/producer.h"
#include "plimsoll/ops/tensor/saved.h"

namespace plimsoll::ops {

// One normalisation: what it reads, and what backward needs of it.
struct NormPass {
  NormOptions options = {};
  at::Tensor x = {};       // [rows, dim]; the sum once it has run
  at::Tensor weight = {};  // as the caller gave it
  at::Tensor bias = {};
  at::Tensor mean = {};  // fp32 [rows]; LayerNorm
  at::Tensor rstd = {};  // fp32 [rows]

  void exchange(SavedTensors& tensors);
};

void check_norm(const NormInput& input, const NormOptions& options, const char* op);

bool any_requires_grad(const NormInput& input);

NormPass norm_pass(const NormInput& input, const NormOptions& options);

// Normalises x + residual (x alone where that is undefined) and fills pass.x, mean and rstd. `pass` outlives it.
Producer norm_producer(NormPass& pass, const at::Tensor& residual);

// The same values again, of a pass that has run.
Producer norm_producer_again(const NormPass& pass);

struct NormGradients {
  at::Tensor x = {};  // of x and of the residual alike
  at::Tensor weight = {};
  at::Tensor bias = {};
};
// grad [rows, dim] of the output; grad_sum: the gradient that reaches the sum from elsewhere, or undefined. x is in the
// shape x_sizes; weight and bias (LayerNorm) are fp32.
NormGradients run_norm_backward(const NormPass& pass, const at::Tensor& grad, const at::Tensor& grad_sum,
                                at::IntArrayRef x_sizes);

// In the dtypes of the parameters. Without a grad, the gradient of x is grad_sum and nothing else is defined.
NormGradients norm_gradients(const NormPass& pass, const at::Tensor& grad, const at::Tensor& grad_sum,
                             at::IntArrayRef x_sizes);

}  // namespace plimsoll::ops
