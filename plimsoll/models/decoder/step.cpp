// A step of generation, as a team of threads runs it.
#include "plimsoll/models/decoder/model.h"

namespace plimsoll::models {

void DecoderImpl::describe(TeamStep& step, const StepLayers& layers, const StepPositions& positions) {
  step.embedding_factor = embedding_factor();
  const std::array<ops::RotaryTurns, 2> turns =
      positions.each.defined() ? this->turns(positions.each) : this->turns(positions.first, 1);
  for (size_t i = 0; i < blocks->size(); ++i) {
    auto& block = blocks->at<DecoderBlockImpl>(i);
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
}

}  // namespace plimsoll::models
