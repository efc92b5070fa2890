// Rows of a batch whose padding stands anywhere, brought to rows whose tokens come first. Causal attention then never
// reads padding, and a token has the position and the bits that it has alone.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::models {

class TokensFirst {
 public:
  // attention_mask [batch, seq], nonzero where there is a token; undefined: everywhere.
  TokensFirst(const at::Tensor& tokens, const at::Tensor& attention_mask);

  // x [batch, seq] with each row's tokens first, in their order.
  at::Tensor gathered(const at::Tensor& x) const;
  // x [batch, seq, any] of gathered rows, each token where it was.
  at::Tensor scattered(const at::Tensor& x) const;
  // Tokens of each row, int64 [batch]; undefined where there is no padding.
  const at::Tensor& counts() const { return counts_; }

 private:
  at::Tensor order_;  // int64 [batch, seq]; undefined where nothing moves
  at::Tensor counts_;
};

}  // namespace plimsoll::models
