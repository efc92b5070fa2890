// A step of a T5's decoder as a team of threads runs it (team/step.h).
#pragma once

#include <optional>

#include "plimsoll/models/paged_model.h"
#include "plimsoll/models/t5/model.h"
#include "plimsoll/models/team/step.h"

namespace plimsoll::models {

// Bias of each block's self-attention by the distance between a key and a query: [1, heads, 1, distances], of which the
// first is -(before - 1).
struct T5DistanceBias {
  std::vector<at::Tensor> blocks = {};
  int64_t before = 0;
};

class T5TeamStep {
 public:
  // Logits [rows, vocab_size] in the dtype of the computation of what follows tokens int64 [rows, 1], which follow
  // those in the cache and join it. The bits are those of T5Stack::forward and the head, to which it leaves what is
  // watched, trained, under a scope or fixes, not yet packed, or the first of a cache: nullopt, and nothing has
  // changed.
  static std::optional<at::Tensor> logits(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens,
                                          T5Cache& cache);
  // Logits [texts that want some, vocab_size] of tokens that the decoder reads, as PagedModel::extend_texts() has them
  // behind what an encoder has read. bias: for as many keys as the longest text has, and kMostTextRows queries.
  static std::optional<at::Tensor> logits(T5ForConditionalGenerationImpl& model, std::span<const TextTokens> texts,
                                          const T5DistanceBias& bias);

 private:
  T5TeamStep(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens);
  // Describes all but the keys and values. False: the layers must do it.
  bool describe();
  void extend(T5Cache& cache);
  void extend(std::span<const TextTokens> texts, const T5DistanceBias& bias);
  kernels::AttentionForward attention(int64_t texts) const;
  kernels::AttentionForward cross_attention(const T5Cache& cache, size_t block) const;
  StepAttention& self_attention(size_t block) { return std::get<StepAttention>(step_.layers[3 * block].part); }
  StepAttention& cross_attention(size_t block) { return std::get<StepAttention>(step_.layers[3 * block + 1].part); }

  T5ForConditionalGenerationImpl& model_;
  const at::ScalarType dtype_;
  TeamStep step_;
  StepTexts encoder_texts_;  // the keys that the texts have of their encoders
};

}  // namespace plimsoll::models
