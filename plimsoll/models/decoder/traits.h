// Families of decoder-only models, a row each: what is the same in all models of a family, and how its config.json is
// written.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "plimsoll/models/decoder/config.h"

namespace plimsoll::models {

// Layers that have windows.
enum class WindowRule : uint8_t {
  kNone,
  kAllLayers,       // where sliding_window is not null
  kSwitched,        // with use_sliding_window, from layer max_window_layers on
  kSlidingPattern,  // all but each sixth
};

struct DecoderTraits {
  DecoderFamily family;
  const char* model_type;
  const char* architecture;  // the class of transformers

  // Members of config.json: nullptr where a family has none.
  const char* dim = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* groups = "num_key_value_heads";
  const char* head_dim = "head_dim";
  const char* ffn_dim = "intermediate_size";
  const char* context = "max_position_embeddings";
  const char* epsilon = "rms_norm_eps";
  const char* activation = "hidden_act";
  const char* attention_bias = nullptr;
  const char* mlp_bias = nullptr;
  const char* embedding_dropout = nullptr;
  const char* attention_dropout = "attention_dropout";
  const char* hidden_dropout = nullptr;

  // Values where config.json says nothing.
  int64_t usual_head_dim = 0;  // 0: dim / heads
  double usual_epsilon = 1e-6;
  const char* usual_activation = "silu";
  double usual_dropout = 0;
  double theta = 10000, sliding_theta = 10000;
  double rotated_share = 1;
  bool ties_head = false;
  // Values of a member that is absent; null is none.
  int64_t usual_window = 4096;
  std::optional<int64_t> usual_bos = {}, usual_eos = {}, usual_pad = {};

  nn::Normalization normalization = nn::Normalization::kRmsNorm;
  bool zero_centered_norms = false, norms_heads = false, norms_branches = false;
  bool gated = true;
  bool qkv_bias = false, output_bias = false, all_mlp_bias = false;  // unless a member says
  bool scales_embedding = false;
  bool learned_positions = false;
  bool shrinks_what_writes_stream = false;  // a new model's, by sqrt(2 layers)
  bool rotary_by_reach = false;             // rope_parameters has an entry for each type of layer
  bool turns_share = false;                 // of the channels of a head: partial_rotary_factor
  bool chooses_residual = false;            // use_parallel_residual
  bool scales_by_member = false;            // query_pre_attn_scalar
  WindowRule windows = WindowRule::kNone;
};

std::span<const DecoderTraits> decoder_traits();
const DecoderTraits& traits_of(DecoderFamily family);
// Throws std::invalid_argument that lists what is supported.
const DecoderTraits& traits_of(std::string_view model_type);

}  // namespace plimsoll::models
