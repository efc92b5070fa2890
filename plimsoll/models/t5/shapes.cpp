#include "plimsoll/models/t5/shapes.h"

namespace plimsoll::models {
namespace {

// The parameters of one sub-layer after the other.
class StackShapes {
 public:
  StackShapes(ParameterShapes& shapes, const T5Config& config, std::string stack)
      : shapes_(shapes), config_(config), stack_(std::move(stack)) {}

  void add_block(int64_t block, bool is_decoder) {
    block_ = stack_ + ".block." + std::to_string(block);
    layer_ = 0;
    add_attention("SelfAttention");
    if (block == 0 || config_.relative_bias_in_each_layer) {
      shapes_[block_ + ".layer.0.SelfAttention.relative_attention_bias.weight"] = {
          config_.relative_attention_num_buckets, config_.num_heads};
    }
    if (is_decoder) add_attention("EncDecAttention");
    add_feed_forward();
  }
  void add_final_norm() { shapes_[stack_ + ".final_layer_norm.weight"] = {config_.d_model}; }

 private:
  // The prefix of the next sub-layer's module, with its norm added.
  std::string next(const char* module) {
    const std::string layer = block_ + ".layer." + std::to_string(layer_++) + ".";
    shapes_[layer + "layer_norm.weight"] = {config_.d_model};
    return layer + module + ".";
  }
  void add_attention(const char* module) {
    const int64_t inner = config_.num_heads * config_.d_kv;
    const std::string prefix = next(module);
    for (const char* name : {"q", "k", "v"}) shapes_[prefix + name + ".weight"] = {inner, config_.d_model};
    shapes_[prefix + "o.weight"] = {config_.d_model, inner};
  }
  void add_feed_forward() {
    const std::string prefix = next("DenseReluDense");
    const auto up = config_.gated() ? std::vector<std::string>{"wi_0", "wi_1"} : std::vector<std::string>{"wi"};
    for (const std::string& name : up) shapes_[prefix + name + ".weight"] = {config_.d_ff, config_.d_model};
    shapes_[prefix + "wo.weight"] = {config_.d_model, config_.d_ff};
  }

  ParameterShapes& shapes_;
  const T5Config& config_;
  std::string stack_, block_;
  int64_t layer_ = 0;
};

}  // namespace

ParameterShapes t5_parameter_shapes(const T5Config& config) {
  ParameterShapes shapes = {{"shared.weight", {config.vocab_size, config.d_model}}};
  StackShapes encoder(shapes, config, "encoder");
  for (int64_t block = 0; block < config.num_layers; ++block) encoder.add_block(block, /*is_decoder=*/false);
  encoder.add_final_norm();
  if (config.encoder_only) return shapes;
  StackShapes decoder(shapes, config, "decoder");
  for (int64_t block = 0; block < config.num_decoder_layers; ++block) decoder.add_block(block, /*is_decoder=*/true);
  decoder.add_final_norm();
  if (!config.tie_word_embeddings) shapes["lm_head.weight"] = {config.vocab_size, config.d_model};
  return shapes;
}

}  // namespace plimsoll::models
