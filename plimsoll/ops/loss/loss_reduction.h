// Reductions of losses on a CUDA device, by torch's operators: nothing comes to the host. They are in double, in torch's order, and
// rounded once.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/loss/cross_entropy.h"

namespace plimsoll::ops {

// Sum of the weights of the targets, but those that are ignored: a scalar, in double. class_weight: fp32 [vocabulary], or undefined
// where each counts as 1. A target out of the vocabulary has the weight of its first or last class.
at::Tensor weight_of_targets(const at::Tensor& targets, int64_t ignore_index, const at::Tensor& class_weight);

// The losses themselves with kNone, else their sum, with kMean divided by total_weight: fp32.
at::Tensor reduced_losses(const at::Tensor& losses, Reduction reduction, const at::Tensor& total_weight);

// 1 / total_weight, as the CPU's kernel is given it: fp32, a scalar.
at::Tensor factor_of_mean(const at::Tensor& total_weight);

}  // namespace plimsoll::ops
