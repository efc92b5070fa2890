#include "plimsoll/models/stacked_model.h"

#include "plimsoll/nn/forward_hooks.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {

void StackedModel::make_head(bool tied) {
  const int64_t vocabulary = token_embedding->weight.size(0), dim = token_embedding->weight.size(1);
  if (tied) {
    tied_head_ = LanguageHead::tied_state();
  } else {
    head = module().register_module(
        "head", nn::Linear(dim, vocabulary, nn::LinearOptions{.bias = false, .high_precision = true}));
  }
}

LanguageHead StackedModel::reader() const {
  if (!head.is_empty()) return {.own = head};
  return {.embedding = token_embedding->weight, .tied = tied_head_};
}

void StackedModel::draw_parameters(const Initial& initial, std::optional<at::Generator> generator) {
  if (nn::UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module().named_parameters()) {
    at::Tensor tensor = parameter.value();
    const std::string& name = parameter.key();
    if (tensor.dim() == 2) {
      const bool writes_stream = name.ends_with("proj.weight") || name.ends_with("fc2_weight");
      tensor.normal_(0, writes_stream ? initial.stream_deviation : initial.deviation, generator);
    } else {
      tensor.fill_(name.ends_with("bias") ? 0 : initial.norm);
    }
  }
}

TokenCache StackedModel::make_cache(const TokenCacheOptions& options) const {
  return {static_cast<int64_t>(blocks->size()), options.capacity.value_or(context()), options.format};
}

std::vector<LanguageModel::Unit> StackedModel::units() {
  std::vector<Unit> units;
  for (const auto& block : *blocks) units.push_back({block, &dynamic_cast<nn::BlockSwitches&>(*block).hooks});
  return units;
}

void StackedModel::checkpoint_activations(bool enabled) {
  for (const auto& block : *blocks) dynamic_cast<nn::BlockSwitches&>(*block).checkpoint_activations = enabled;
}

at::Tensor StackedModel::extend(const at::Tensor& tokens, TokenCache& cache, const Extension& extension) {
  TORCH_CHECK(cache.layers() == blocks->size(), "extend: expected a cache of ", blocks->size(), " layers, got ",
              cache.layers());
  const at::NoGradGuard no_grad;
  if (at::Tensor logits = step(tokens, cache); logits.defined()) return logits;
  const bool is_first = cache.length() == 0;
  at::Tensor hidden = normalised(tokens, is_first, &cache);
  if (!extension.all_logits) hidden = hidden.slice(1, -1);
  return reader().logits(hidden, is_first).to(at::kFloat);
}

at::Tensor StackedModel::step(const at::Tensor& tokens, TokenCache& cache) {
  const at::ScalarType dtype = token_embedding->weight.scalar_type();
  const int64_t first = cache.length();
  if (module().is_training() || !may_step() || first >= context() || !may_follow(cache, tokens, dtype)) return {};
  for (const Unit& unit : units()) {
    if (unit.hooks->before) return {};
  }
  const StepLayers layers(dtype);
  TeamStep step{.tokens = tokens.contiguous(),
                .format = ops::format_of(dtype, "step"),
                .token_weight = token_embedding->weight,
                .norm = step_norm(norm)};
  if (!position_embedding.is_empty()) step.position_weight = position_embedding->weight.narrow(0, first, 1);
  describe(step, layers, first);
  step.head = head.is_empty() ? layers.product(token_embedding->weight, {}, *tied_head_) : layers.product(head);
  if (!fits(step)) return {};
  check_tokens(tokens, token_embedding->weight.size(0));
  models::extend(cache, step);
  return models::run(step).unsqueeze(1).to(at::kFloat);
}

}  // namespace plimsoll::models
