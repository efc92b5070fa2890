// attention() in terms of torch's operators, for tensors without memory of their own and for those on a CUDA device.
#pragma once

#include "plimsoll/ops/attention/attention.h"

namespace plimsoll::ops {

// Whether attention() is one call of torch's: with a bias or a causal rule alone, and no window.
bool composes_attention(const at::Tensor& query, const at::Tensor& key, const AttentionOptions& options);
at::Tensor composed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const AttentionOptions& options);

// attention() on any device and under every rule but segments, which are an error; dropout draws from torch's generator of the
// device. Scores and their sums are in torch's precision.
at::Tensor torch_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttentionOptions& options);

}  // namespace plimsoll::ops
