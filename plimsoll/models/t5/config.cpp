#include "plimsoll/models/t5/config.h"

#include <c10/util/Exception.h>

#include <initializer_list>

namespace plimsoll::models {
namespace {

// Beyond these no machine holds the model, and sizes no longer multiply within 64 bits.
constexpr int64_t kLargestSize = 1 << 24;

struct Size {
  const char* name;
  int64_t value;
  int64_t from;
};

}  // namespace

void check(const T5Config& config) {
  const std::initializer_list<Size> sizes = {
      {"vocab_size", config.vocab_size, 2},
      {"d_model", config.d_model, 1},
      {"d_kv", config.d_kv, 1},
      {"d_ff", config.d_ff, 1},
      {"num_layers", config.num_layers, 0},
      {"num_decoder_layers", config.num_decoder_layers, 0},
      {"num_heads", config.num_heads, 1},
      {"relative_attention_num_buckets", config.relative_attention_num_buckets, 4},
      {"relative_attention_max_distance", config.relative_attention_max_distance, 1},
  };
  for (const Size& size : sizes) {
    TORCH_CHECK_VALUE(size.value >= size.from && size.value <= kLargestSize, "t5: expected ", size.name, " of ",
                      size.from, " to ", kLargestSize, ", got ", size.value);
  }
  TORCH_CHECK_VALUE(config.relative_attention_num_buckets % 2 == 0 &&
                        config.relative_attention_max_distance > config.relative_attention_num_buckets / 2,
                    "t5: expected an even relative_attention_num_buckets and a relative_attention_max_distance beyond "
                    "half of it, got ",
                    config.relative_attention_num_buckets, " and ", config.relative_attention_max_distance);
  TORCH_CHECK_VALUE(config.dropout_rate >= 0 && config.dropout_rate < 1, "t5: expected dropout_rate in [0, 1), got ",
                    config.dropout_rate);
  TORCH_CHECK_VALUE(config.layer_norm_epsilon >= 0 && config.layer_norm_epsilon < 1e30,
                    "t5: expected a finite layer_norm_epsilon >= 0, got ", config.layer_norm_epsilon);
  for (const int64_t token : {config.pad_token_id, config.eos_token_id, config.decoder_start_token_id}) {
    TORCH_CHECK_VALUE(token >= 0 && token < config.vocab_size,
                      "t5: expected the ids of pad, eos and decoder start in [0, ", config.vocab_size, "), got ",
                      token);
  }
}

}  // namespace plimsoll::models
