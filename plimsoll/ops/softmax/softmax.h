// Softmax over keys, scaled and masked, FP32 inside. Differentiable once.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/softmax/causal.h"

namespace plimsoll::ops {

struct SoftmaxOptions {
  double scale = 1.0;
  Causal causal = Causal::kNone;
  at::Tensor mask = {};  // bool, true = masked; undefined, or broadcastable to x
};

// x [batch, heads, queries, keys]. Masked places are 0; a row that is masked whole is all 0.
at::Tensor softmax(const at::Tensor& x, const SoftmaxOptions& options);

}  // namespace plimsoll::ops
