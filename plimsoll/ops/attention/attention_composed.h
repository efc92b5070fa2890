// attention() in terms of torch's operators, for tensors without memory of their own.
#pragma once

#include "plimsoll/ops/attention/attention.h"

namespace plimsoll::ops {

// Whether attention() may be torch's: with a bias or a causal rule alone, and no window.
bool composes_attention(const at::Tensor& query, const at::Tensor& key, const AttentionOptions& options);
at::Tensor composed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const AttentionOptions& options);

}  // namespace plimsoll::ops
