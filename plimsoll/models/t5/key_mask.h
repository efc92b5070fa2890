// Keys that the queries of an attention may see.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/models/t5/fixes.h"
#include "plimsoll/ops/softmax/causal.h"

namespace plimsoll::models {

struct T5KeyMask {
  ops::Causal causal = ops::Causal::kNone;
  at::Tensor lengths = {};   // int64 [batch], or undefined
  at::Tensor mask = {};      // bool [batch, 1, 1, keys], true = masked, or undefined
  at::Tensor additive = {};  // fp16 [batch or 1, 1, queries or 1, keys], added to the scores; then the others are unset
  bool saturates = false;    // the sum with `additive` may reach -Inf: mask_scale is 1
};

struct T5KeyMaskOptions {
  int64_t queries = 1, keys = 1;
  ops::Causal causal = ops::Causal::kNone;
  at::ScalarType dtype = at::kFloat;  // of the scores
  T5Numerics numerics = {};
};

// attention_mask [batch, keys], nonzero where there is a token, or undefined. Trailing padding becomes lengths; FP16
// under fixes becomes a sum.
T5KeyMask key_mask(const at::Tensor& attention_mask, const T5KeyMaskOptions& options);

}  // namespace plimsoll::models
