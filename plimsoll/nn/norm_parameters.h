// The parameters of a norm inside a layer: PREFIX_weight, and PREFIX_bias for LayerNorm.
#pragma once

#include <torch/nn/module.h>

#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::nn {

using Normalization = kernels::NormKind;

struct NormParameters {
  at::Tensor weight, bias;  // bias: undefined for RMSNorm

  // prefix: "" or "layer_norm_". Throws c10::ValueError for a size below 1 or an epsilon that is negative or not
  // finite.
  void register_in(torch::nn::Module& module, const std::string& prefix, int64_t dim, const ops::NormOptions& options);
  void reset(const ops::NormOptions& options) const;  // the identity
};

}  // namespace plimsoll::nn
