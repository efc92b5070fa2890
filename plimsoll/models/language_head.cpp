#include "plimsoll/models/language_head.h"

#include "plimsoll/models/computed_dtype.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/loss/cross_entropy.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::models {
namespace {

// From here on the logits outweigh the hidden states by far; below, the plain product is faster.
constexpr int64_t kLargeVocabulary = 4096;

}  // namespace

std::shared_ptr<ops::LinearState> LanguageHead::tied_state() {
  auto state = std::make_shared<ops::LinearState>("head");
  state->weight_source.read_in_place();
  return state;
}

at::Tensor LanguageHead::logits(const at::Tensor& hidden, std::optional<bool> is_first_microbatch) const {
  if (!own.is_empty()) return nn::Linear(own)->forward(hidden, is_first_microbatch);
  return ops::linear(hidden, embedding, {}, nn::high_precision_scaling(tied, embedding, is_first_microbatch));
}

at::Tensor LanguageHead::loss(const at::Tensor& hidden, const at::Tensor& targets,
                              std::optional<bool> is_first_microbatch) const {
  const at::Tensor weight = own.is_empty() ? embedding : own->weight.joined();
  if (weight.size(0) < kLargeVocabulary) return ops::cross_entropy(logits(hidden, is_first_microbatch), targets);
  const watch::AuditedLayer layer("head");
  if (watch::Audit* const audit = watch::auditing(); audit != nullptr && !amp::recipe_for(weight)->high_precision()) {
    audit->explain_layer("head", "the model defines this layer in high precision");
  }
  return ops::linear_cross_entropy(hidden, weight, targets, {}, computed_dtype(weight));
}

}  // namespace plimsoll::models
