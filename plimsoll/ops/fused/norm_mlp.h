// The MLP of a transformer block as one op: norm, fc1, activation, fc2.
#pragma once

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::ops {

struct MlpWeights {
  at::Tensor fc1_weight;     // [ffn, dim]; gated activations [2 ffn, dim], the first half gates
  at::Tensor fc1_bias = {};  // [ffn] ([2 ffn]) or undefined
  at::Tensor fc2_weight;     // [dim, ffn]
  at::Tensor fc2_bias = {};  // [dim] or undefined
};

struct MlpScaling {
  LinearScaling fc1;
  LinearScaling fc2;  // of the same recipe
};

// Saved for backward: what was normalised, mean, rstd, the pre-activation in the recipe's high-precision format, and
// the weights' codes. The codes of both inputs are made again in backward, with the same bits.
NormOutput norm_mlp(const NormInput& input, const NormOptions& options, const MlpWeights& weights,
                    const kernels::ActivationSpec& activation, const MlpScaling& scaling);

}  // namespace plimsoll::ops
