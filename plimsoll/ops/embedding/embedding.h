// Learned vectors of tokens and of positions in one pass.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

struct TokensAndPositions {
  at::Tensor tokens;                // int64 [batch, seq]
  at::Tensor token_weight;          // [vocabulary, dim]
  at::Tensor position_weight = {};  // [context, dim], of the dtype of token_weight; or undefined
  int64_t first_position = 0;
};

// token_weight[tokens] + position_weight[first_position .. first_position + seq) [batch, seq, dim], in `dtype` after
// one rounding. Gradients are FP32 sums in the order of the places, rounded once to the dtype of their tensor, whatever
// the number of threads. Differentiable once.
//
// Tokens are rows of token_weight. Another one is an error on the CPU; on a CUDA device, whose numbers the host does not
// wait for, its place is NaN, and it has no gradient.
at::Tensor embedding(const TokensAndPositions& input, at::ScalarType dtype);

}  // namespace plimsoll::ops
