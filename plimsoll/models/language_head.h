// The head of a decoder-only model: logits = hidden weight^T, in high precision under every recipe.
#pragma once

#include <memory>
#include <optional>

#include "plimsoll/nn/linear.h"

namespace plimsoll::models {

struct LanguageHead {
  // State of a head that reads the embedding, whose name in reports is "head".
  static std::shared_ptr<ops::LinearState> tied_state();

  // hidden [batch, seq, dim] -> [batch, seq, vocabulary].
  at::Tensor logits(const at::Tensor& hidden, std::optional<bool> is_first_microbatch) const;
  // Mean cross entropy. The logits of a large vocabulary are never held whole: ops::linear_cross_entropy.
  at::Tensor loss(const at::Tensor& hidden, const at::Tensor& targets, std::optional<bool> is_first_microbatch) const;

  nn::Linear own{nullptr};                   // none if tied
  at::Tensor embedding = {};                 // [vocabulary, dim], if tied
  std::shared_ptr<ops::LinearState> tied{};  // if tied
};

}  // namespace plimsoll::models
