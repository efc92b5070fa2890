// A step of generation, as a team of threads runs it.
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/team/layers.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {

at::Tensor DecoderImpl::step(const at::Tensor& tokens, TokenCache& cache) {
  const at::ScalarType dtype = token_embedding->weight.scalar_type();
  const int64_t first = cache.length();
  if (is_training() || !may_step() || first >= config.context || !may_follow(cache, tokens, dtype)) return {};
  const StepLayers layers(dtype);
  TeamStep step{.tokens = tokens.contiguous(),
                .format = ops::format_of(dtype, "decoder"),
                .token_weight = token_embedding->weight,
                .embedding_factor = embedding_factor(),
                .norm = step_norm(norm)};
  if (config.learned_positions) step.position_weight = position_embedding->weight.narrow(0, first, 1);
  const std::array<ops::RotaryTurns, 2> turns = this->turns(first, 1);
  for (size_t i = 0; i < blocks->size(); ++i) {
    auto& block = blocks->at<DecoderBlockImpl>(i);
    if (block.hooks.before) return {};
    DecoderAttentionImpl& attention = *block.self_attention;
    step.layers.push_back(layers.attention(attention.layernorm_qkv, attention.core_attention, attention.proj));
    auto& part = std::get<StepAttention>(step.layers.back().part);
    if (config.norms_heads) {
      part.query_norm = step_norm(attention.query_norm);
      part.key_norm = step_norm(attention.key_norm);
    }
    part.rotary = turns[static_cast<size_t>(block.reach)];
    if (config.norms_branches) step.layers.back().branch_norm = step_norm(block.attention_norm);
    step.layers.push_back(layers.feed_forward(block.layernorm_mlp));
    step.layers.back().joins_before = config.parallel_residual;
    if (config.norms_branches) step.layers.back().branch_norm = step_norm(block.mlp_norm);
  }
  step.head = config.ties_head ? layers.product(token_embedding->weight, {}, *tied_head_) : layers.product(head);
  if (!fits(step)) return {};
  check_tokens(tokens, config.vocabulary);
  models::extend(cache, step);
  return models::run(step).unsqueeze(1).to(at::kFloat);
}

}  // namespace plimsoll::models
