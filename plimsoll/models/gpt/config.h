// The sizes and the kind of a GPT.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "plimsoll/nn/layer_norm.h"

namespace plimsoll::models {

struct GptConfig {
  int64_t vocabulary = 256;
  int64_t layers = 4;
  int64_t dim = 256;
  int64_t heads = 4;            // must divide dim
  int64_t context = 256;        // tokens that the model can see
  bool tie_embeddings = false;  // the head reads token_embedding.weight, as GPT-2's
  double dropout = 0.0;         // of embeddings, attention and hidden states, while training
  nn::Normalization normalization = nn::Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
};

// Throws std::invalid_argument unless all sizes are positive and heads divides dim.
void check_sizes(const GptConfig& config);

// A checkpoint's "shape": {"layers", "dim", "heads", "context"}, and what differs from the defaults: "vocabulary",
// "dropout", "rms_norm": true, "norm_epsilon", "own_head": false (tied).
void to_json(nlohmann::json& json, const GptConfig& config);
void from_json(const nlohmann::json& json, GptConfig& config);

}  // namespace plimsoll::models
