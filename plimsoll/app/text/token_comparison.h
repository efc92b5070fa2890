// Logits of a model against FP32's, over the tokens of a text.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace plimsoll::app {

class TokenComparison {
 public:
  // logits, reference: fp32 [tokens, vocabulary]; targets: int64 [tokens].
  void add(const at::Tensor& logits, const at::Tensor& reference, const at::Tensor& targets);

  // KL divergence of the reference's distribution to this one, nats: of each token, in order.
  const std::vector<double>& divergences() const { return divergences_; }

  // {"finite", "perplexity", "logits_kl", "logits_kl_p99", "logits_kl_p999", "top1_agreement", "top1_agreement_interval",
  // "top5_agreement"} as text_parity() has them.
  nlohmann::json result() const;

 private:
  bool finite_ = true;
  double loss_ = 0;
  std::vector<double> divergences_;
  int64_t agreeing_ = 0, among_five_ = 0;
};

}  // namespace plimsoll::app
