#include "plimsoll/models/t5/config.h"

#include "plimsoll/models/config_checks.h"

namespace plimsoll::models {

void check(const T5Config& config) {
  check_sizes("t5", {
                        {"vocab_size", config.vocab_size, 2},
                        {"d_model", config.d_model, 1},
                        {"d_kv", config.d_kv, 1},
                        {"d_ff", config.d_ff, 1},
                        {"num_layers", config.num_layers, 0},
                        {"num_decoder_layers", config.num_decoder_layers, 0},
                        {"num_heads", config.num_heads, 1},
                        {"relative_attention_num_buckets", config.relative_attention_num_buckets, 4},
                        {"relative_attention_max_distance", config.relative_attention_max_distance, 1},
                    });
  TORCH_CHECK_VALUE(config.relative_attention_num_buckets % 2 == 0 &&
                        config.relative_attention_max_distance > config.relative_attention_num_buckets / 2,
                    "t5: expected an even relative_attention_num_buckets and a relative_attention_max_distance beyond "
                    "half of it, got ",
                    config.relative_attention_num_buckets, " and ", config.relative_attention_max_distance);
  check_dropouts("t5", "dropout_rate", {config.dropout_rate});
  check_norm_epsilon("t5", "layer_norm_epsilon", config.layer_norm_epsilon);
  for (const int64_t token : {config.pad_token_id, config.eos_token_id, config.decoder_start_token_id}) {
    TORCH_CHECK_VALUE(token >= 0 && token < config.vocab_size,
                      "t5: expected the ids of pad, eos and decoder start in [0, ", config.vocab_size, "), got ",
                      token);
  }
}

}  // namespace plimsoll::models
