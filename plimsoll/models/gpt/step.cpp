// A step of generation, as a team of threads runs it.
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/team/layers.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {

at::Tensor GptImpl::step(const at::Tensor& tokens, TokenCache& cache) {
  const at::ScalarType dtype = token_embedding->weight.scalar_type();
  const bool sees_it = cache.length() < config.context;
  if (is_training() || !may_step() || !sees_it || !may_follow(cache, tokens, dtype)) return {};
  const StepLayers layers(dtype);
  TeamStep step{.tokens = tokens.contiguous(),
                .format = ops::format_of(dtype, "gpt"),
                .token_weight = token_embedding->weight,
                .position_weight = position_embedding->weight.narrow(0, cache.length(), 1),
                .norm = step_norm(norm)};
  for (size_t i = 0; i < blocks->size(); ++i) {
    auto& block = blocks->at<nn::TransformerLayerImpl>(i);
    if (block.hooks.before) return {};
    nn::MultiheadAttentionImpl& attention = *block.self_attention;
    step.layers.push_back(layers.attention(attention.layernorm_qkv, attention.core_attention, attention.proj));
    step.layers.push_back(layers.feed_forward(block.layernorm_mlp));
  }
  step.head = config.tie_embeddings ? layers.product(token_embedding->weight, {}, *tied_head_) : layers.product(head);
  if (!fits(step)) return {};
  check_tokens(tokens, config.vocabulary);
  models::extend(cache, step);
  return models::run(step).unsqueeze(1).to(at::kFloat);
}

}  // namespace plimsoll::models
