// A norm of a step, on raw rows.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/kernels/norm/norm.h"

namespace plimsoll::models {

struct StepNorm {
  at::Tensor weight = {}, bias = {};  // [cols] of fp32, bf16 or fp16; without a weight there is no norm
  kernels::NormKind kind = kernels::NormKind::kRmsNorm;
  bool zero_centered = false;  // kernels::NormForward
  double epsilon = 1e-6;

  bool defined() const { return weight.defined(); }
  int64_t cols() const { return weight.defined() ? weight.size(0) : 0; }
  // Runs over the rows of `args`, which has all that this does not say. scratch: fp32 [2 * cols].
  void run(kernels::NormForward args, float* scratch) const;
};

}  // namespace plimsoll::models
