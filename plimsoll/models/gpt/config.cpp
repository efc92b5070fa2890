#include "plimsoll/models/gpt/config.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "plimsoll/io/error.h"

namespace plimsoll::models {

void check_sizes(const GptConfig& config) {
  if (config.layers < 1 || config.dim < 1 || config.heads < 1 || config.context < 1) {
    throw std::invalid_argument(
        io::compose("model: expected positive sizes, got {} layers, dim {}, {} heads, context {}", config.layers,
                    config.dim, config.heads, config.context));
  }
  if (config.dim % config.heads != 0) {
    throw std::invalid_argument(
        io::compose("model: expected heads that divide dim {}, got {} heads", config.dim, config.heads));
  }
}

void to_json(nlohmann::json& json, const GptConfig& config) {
  json = {{"layers", config.layers}, {"dim", config.dim}, {"heads", config.heads}, {"context", config.context}};
  const GptConfig usual;
  if (config.vocabulary != usual.vocabulary) json["vocabulary"] = config.vocabulary;
  if (config.dropout != usual.dropout) json["dropout"] = config.dropout;
  if (config.normalization == nn::Normalization::kRmsNorm) json["rms_norm"] = true;
  if (config.norm_epsilon != usual.norm_epsilon) json["norm_epsilon"] = config.norm_epsilon;
  if (config.tie_embeddings) json["own_head"] = false;
}

void from_json(const nlohmann::json& json, GptConfig& config) {
  const GptConfig usual;
  config = {
      .vocabulary = json.value("vocabulary", usual.vocabulary),
      .layers = json.at("layers").get<int64_t>(),
      .dim = json.at("dim").get<int64_t>(),
      .heads = json.at("heads").get<int64_t>(),
      .context = json.at("context").get<int64_t>(),
      .tie_embeddings = !json.value("own_head", true),
      .dropout = json.value("dropout", usual.dropout),
      .normalization = json.value("rms_norm", false) ? nn::Normalization::kRmsNorm : nn::Normalization::kLayerNorm,
      .norm_epsilon = json.value("norm_epsilon", usual.norm_epsilon)};
}

}  // namespace plimsoll::models
