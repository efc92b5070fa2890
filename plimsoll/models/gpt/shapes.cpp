#include "plimsoll/models/gpt/shapes.h"

namespace plimsoll::models {
namespace {

// A matrix [rows, columns] with its bias.
void add_linear(ParameterShapes& shapes, const std::string& prefix, int64_t rows, int64_t columns) {
  shapes[prefix + "weight"] = {rows, columns};
  shapes[prefix + "bias"] = {rows};
}

void add_norm(ParameterShapes& shapes, const std::string& prefix, const GptConfig& config) {
  shapes[prefix + "weight"] = {config.dim};
  if (config.normalization == nn::Normalization::kLayerNorm) shapes[prefix + "bias"] = {config.dim};
}

}  // namespace

ParameterShapes gpt_parameter_shapes(const GptConfig& config) {
  const int64_t dim = config.dim;
  ParameterShapes shapes = {{"token_embedding.weight", {config.vocabulary, dim}},
                            {"position_embedding.weight", {config.context, dim}}};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer);
    const std::string attention = block + ".self_attention.", mlp = block + ".layernorm_mlp.";
    add_norm(shapes, attention + "layernorm_qkv.layer_norm_", config);
    add_linear(shapes, attention + "layernorm_qkv.", 3 * dim, dim);
    add_linear(shapes, attention + "proj.", dim, dim);
    add_norm(shapes, mlp + "layer_norm_", config);
    add_linear(shapes, mlp + "fc1_", 4 * dim, dim);
    add_linear(shapes, mlp + "fc2_", dim, 4 * dim);
  }
  add_norm(shapes, "norm.", config);
  if (!config.tie_embeddings) shapes["head.weight"] = {config.vocabulary, dim};
  return shapes;
}

}  // namespace plimsoll::models
