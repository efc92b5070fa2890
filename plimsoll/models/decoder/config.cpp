#include "plimsoll/models/decoder/config.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/models/config_checks.h"

namespace plimsoll::models {
namespace {

void check_shape(const DecoderConfig& config) {
  check_sizes("decoder", {{"vocab_size", config.vocabulary},
                          {"num_hidden_layers", config.layers},
                          {"hidden_size", config.dim},
                          {"num_attention_heads", config.heads},
                          {"num_key_value_heads", config.groups},
                          {"head_dim", config.head_dim},
                          {"intermediate_size", config.ffn_dim},
                          {"max_position_embeddings", config.context}});
  TORCH_CHECK_VALUE(config.heads % config.groups == 0, "decoder: expected num_key_value_heads that divides ",
                    config.heads, " heads, got ", config.groups);
  TORCH_CHECK_VALUE(config.reaches.size() == static_cast<size_t>(config.layers), "decoder: expected layer_types of ",
                    config.layers, " layers, got ", config.reaches.size());
}

}  // namespace

bool DecoderConfig::keeps_in_high_precision(std::string_view parameter) const {
  return std::ranges::any_of(high_precision, [&](const std::string& product) {
    if (!parameter.starts_with(product)) return false;
    const std::string_view rest = parameter.substr(product.size());
    return rest == ".weight" || rest == "_weight";
  });
}

void check(const DecoderConfig& config) {
  check_shape(config);
  const bool slides = std::find(config.reaches.begin(), config.reaches.end(), Reach::kSliding) != config.reaches.end();
  TORCH_CHECK_VALUE(config.window >= (slides ? 1 : 0), "decoder: expected sliding_window >= ", slides ? 1 : 0, ", got ",
                    config.window);
  if (!config.learned_positions) {
    for (const nn::RotaryTableOptions& options : {config.rotary, config.sliding_rotary}) {
      const nn::RotaryTable checked(config.head_dim, options);
    }
  }
  check_norm_epsilon("decoder", "epsilon of the norms", config.norm_epsilon);
  TORCH_CHECK_VALUE(config.attention_scale >= 0 && std::isfinite(config.attention_scale),
                    "decoder: expected a finite scale of the scores >= 0, got ", config.attention_scale);
  TORCH_CHECK_VALUE(config.initializer_range >= 0 && std::isfinite(config.initializer_range),
                    "decoder: expected a finite initializer_range >= 0, got ", config.initializer_range);
  check_dropouts("decoder", "dropout", {config.embedding_dropout, config.attention_dropout, config.hidden_dropout});
}

}  // namespace plimsoll::models
