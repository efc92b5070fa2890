// Small decoders with adapters.
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>

#include "plimsoll/io/error.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/lora/lora.h"

namespace plimsoll::models::testing {

inline const LoraOptions kSmallLora{.adapters = {.rank = 3, .alpha = 4}};

inline Decoder small_base(const DecoderConfig& config) {
  torch::manual_seed(5);
  Decoder model(config);
  model->eval();
  return model;
}

// Adapters that matter to the logits.
inline void train_by_chance(DecoderImpl& model) {
  const at::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    if (item.key().ends_with("_B")) at::Tensor(item.value()).normal_(0, 0.3);
  }
}

inline Decoder adapted(const DecoderConfig& config, const LoraOptions& options = kSmallLora) {
  Decoder model = small_base(config);
  add_lora(*model, options);
  train_by_chance(*model);
  return model;
}

inline at::Tensor some_tokens(const DecoderConfig& config) {
  torch::manual_seed(6);
  return torch::randint(config.vocabulary, {2, 9}, at::kLong);
}

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const io::Error& error) {
    return error.what();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

inline DecoderConfig config_of(DecoderFamily family) { return small_decoder(traits_of(family)); }

}  // namespace plimsoll::models::testing
