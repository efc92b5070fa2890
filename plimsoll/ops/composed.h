// The fused ops in terms of torch's operators, for tensors whose memory is not theirs to read, such as autoscale's
// scaled ones: each operator is then computed as their owner says.
#pragma once

#include "plimsoll/ops/attention.h"
#include "plimsoll/ops/norm_mlp.h"

namespace plimsoll::ops {

// Whether a tensor has no memory of its own.
inline bool is_opaque(const at::Tensor& x) { return x.defined() && !x.has_storage(); }

// As linear(), norm(), activation() and norm_mlp(), under recipes of high precision in FP32 alone.
at::Tensor composed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const LinearScaling& scaling);
NormOutput composed_norm(const NormInput& input, const NormOptions& options);
at::Tensor composed_activation(const at::Tensor& x, kernels::Activation kind);
NormOutput composed_norm_mlp(const NormInput& input, const NormOptions& options, const MlpWeights& weights,
                             kernels::Activation activation, const MlpScaling& scaling);

// Whether attention() may be torch's: with a bias or a causal rule alone.
bool composes_attention(const at::Tensor& query, const at::Tensor& key, const AttentionOptions& options);
at::Tensor composed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const AttentionOptions& options);

}  // namespace plimsoll::ops
