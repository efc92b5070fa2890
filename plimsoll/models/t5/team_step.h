// A step of a T5's decoder as a team of threads runs it (team/step.h).
#pragma once

#include <optional>

#include "plimsoll/models/t5/model.h"
#include "plimsoll/models/team/step.h"

namespace plimsoll::models {

class T5TeamStep {
 public:
  // Logits [rows, vocab_size] in the dtype of the computation of what follows tokens int64 [rows, 1], which follow
  // those in the cache and join it. The bits are those of T5Stack::forward and the head, to which it leaves what is
  // watched, trained, under a scope or fixes, not yet packed, or the first of a cache: nullopt, and nothing has
  // changed.
  static std::optional<at::Tensor> logits(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens,
                                          T5Cache& cache);

 private:
  T5TeamStep(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens, T5Cache& cache);
  void describe();
  void extend_cache();
  kernels::AttentionForward attention(int64_t texts) const;
  kernels::AttentionForward cross_attention(size_t block) const;
  StepAttention& self_attention(size_t block) { return std::get<StepAttention>(step_.layers[3 * block].part); }

  T5ForConditionalGenerationImpl& model_;
  T5Cache& cache_;
  const at::ScalarType dtype_;
  TeamStep step_;
};

}  // namespace plimsoll::models
