// The sizes and the kind of a decoder-only model of Hugging Face's families, as data: one model reads it for all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/nn/norm_parameters.h"
#include "plimsoll/nn/rotary.h"

namespace plimsoll::models {

// The model_type of a config.json: llama, mistral, qwen2, qwen3, gemma3_text, gpt2, gpt_neox.
enum class DecoderFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3, kGemma3Text, kGpt2, kGptNeox };

// The tokens before it that a query sees: all, or the last DecoderConfig::window, its own included.
enum class Reach : uint8_t { kFull, kSliding };

struct DecoderConfig {
  DecoderFamily family = DecoderFamily::kLlama;
  int64_t vocabulary = 32000;
  int64_t layers = 32;
  int64_t dim = 4096;   // of the residual stream
  int64_t heads = 32;   // of queries; heads * head_dim may differ from dim
  int64_t groups = 32;  // heads of keys and values; divides heads
  int64_t head_dim = 128;
  int64_t ffn_dim = 11008;
  int64_t context = 2048;  // tokens that the model can see

  nn::Normalization normalization = nn::Normalization::kRmsNorm;
  double norm_epsilon = 1e-6;
  bool zero_centered_norms = false;  // 1 + weight multiplies
  bool norms_heads = false;          // queries and keys have a norm over head_dim, before they turn
  bool norms_branches = false;       // attention and feed-forward have a norm of what they add to the stream

  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  kernels::Activation activation = kernels::Activation::kSwiglu;
  bool parallel_residual = false;  // x + attention(norm x) + mlp(norm x)
  double attention_scale = 0;      // of the scores; 0: 1 / sqrt(head_dim)
  bool scales_embedding = false;   // by sqrt(dim)
  bool ties_head = false;          // the head reads the embedding

  bool learned_positions = false;         // added to the embedding; else rotary
  nn::RotaryTableOptions rotary;          // of layers that see everything
  nn::RotaryTableOptions sliding_rotary;  // of those with a window
  int64_t window = 0;                     // tokens; 0: no layer has one
  std::vector<Reach> reaches;             // of each layer

  double embedding_dropout = 0, attention_dropout = 0, hidden_dropout = 0;
  double initializer_range = 0.02;  // deviation of the weights of a new model

  std::vector<std::string> high_precision;  // products that never have codes: "blocks.0.layernorm_mlp.fc2"

  std::vector<int64_t> eos_token_ids;  // each ends a text; may be empty
  std::optional<int64_t> bos_token_id, pad_token_id;

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;

  const nn::RotaryTableOptions& rotary_of(Reach reach) const {
    return reach == Reach::kSliding ? sliding_rotary : rotary;
  }
  // Whether the product of this parameter ("blocks.0.layernorm_mlp.fc2_weight") is one of high_precision.
  bool keeps_in_high_precision(std::string_view parameter) const;
};

// A c10::ValueError that names the member at fault.
void check(const DecoderConfig& config);

}  // namespace plimsoll::models
