// Sizes and settings of a T5, in the names of its config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/kernels/activation/activation.h"

namespace plimsoll::models {

struct T5Config {
  int64_t vocab_size = 32128;
  int64_t d_model = 512;
  int64_t d_kv = 64;  // channels of a head; num_heads * d_kv may differ from d_model
  int64_t d_ff = 2048;
  int64_t num_layers = 6;
  int64_t num_decoder_layers = 6;
  int64_t num_heads = 8;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  bool relative_bias_in_each_layer = false;  // UMT5; else the table of block 0 serves its stack
  kernels::Activation feed_forward = kernels::Activation::kRelu;
  double layer_norm_epsilon = 1e-6;
  double dropout_rate = 0.1;
  double initializer_factor = 1.0;
  bool tie_word_embeddings = true;    // the head reads shared.weight
  bool scale_decoder_outputs = true;  // by d_model^-0.5, before the head
  bool encoder_only = false;
  int64_t pad_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t decoder_start_token_id = 0;
  // Products that never have codes, by the names of their modules ("decoder.block.0.layer.2.DenseReluDense.wo"); the head is
  // lm_head, tied or not. Of an encoder alone those of a decoder have no meaning.
  std::vector<std::string> high_precision = {};

  bool gated() const { return kernels::is_gated(feed_forward); }
};

// An error that names the member at fault.
void check(const T5Config& config);

}  // namespace plimsoll::models
