// A model of tests of fine-tuning's estimates.
#pragma once

#include <nlohmann/json.hpp>

namespace plimsoll::app {

// config.json of a Llama of two layers: heads of 16, of which keys and values have half as many, dim 64, feed-forward 160.
inline nlohmann::json tiny_llama(bool ties_head) {
  return {{"model_type", "llama"},
          {"vocab_size", 300},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 160},
          {"max_position_embeddings", 128},
          {"tie_word_embeddings", ties_head}};
}

}  // namespace plimsoll::app
