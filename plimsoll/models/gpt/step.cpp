// A step of generation, as a team of threads runs it.
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::models {

void GptImpl::describe(TeamStep& step, const StepLayers& layers, const StepPositions&) {
  for (size_t i = 0; i < blocks->size(); ++i) {
    auto& block = blocks->at<nn::TransformerLayerImpl>(i);
    nn::MultiheadAttentionImpl& attention = *block.self_attention;
    step.layers.push_back(layers.attention(attention.layernorm_qkv, attention.core_attention, attention.proj));
    step.layers.push_back(layers.feed_forward(block.layernorm_mlp));
  }
}

}  // namespace plimsoll::models
