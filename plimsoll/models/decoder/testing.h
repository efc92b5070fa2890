// Small decoders of every family for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/traits.h"

namespace plimsoll::models::testing {

// Two layers; three heads of queries for each of keys where the family can have it, and heads of another total width
// than the stream; Gemma's first layer has a window.
inline DecoderConfig small_decoder(const DecoderTraits& traits) {
  nlohmann::json config = {{"model_type", traits.model_type},
                           {"vocab_size", 777},
                           {traits.dim, 60},
                           {traits.layers, 2},
                           {traits.heads, 6},
                           {traits.ffn_dim, 87},
                           {traits.context, 64},
                           {"sliding_window", 7}};
  if (traits.groups != nullptr) config[traits.groups] = 2;
  if (traits.head_dim != nullptr) config[traits.head_dim] = 22;
  if (traits.turns_share) config["rotary_pct"] = 0.45;
  if (traits.windows == WindowRule::kSlidingPattern) config["layer_types"] = {"sliding_attention", "full_attention"};
  DecoderConfig result = read_decoder_config(config, "config.json");
  result.embedding_dropout = result.attention_dropout = result.hidden_dropout = 0;
  result.initializer_range = 0.15;  // about 1 / sqrt(dim): each layer matters to the logits
  return result;
}

inline std::vector<DecoderConfig> small_decoders() {
  std::vector<DecoderConfig> configs;
  for (const DecoderTraits& traits : decoder_traits()) configs.push_back(small_decoder(traits));
  return configs;
}

}  // namespace plimsoll::models::testing
