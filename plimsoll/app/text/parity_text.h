// `plimsoll parity` of a decoder-only model: several dtypes on a text, each against FP32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "plimsoll/models/load.h"

namespace plimsoll::app {

struct TextParityOptions {
  std::filesystem::path model;              // a Hugging Face directory
  std::filesystem::path data;               // a text
  std::vector<models::WeightDtype> dtypes;  // not kAsStored
  // Tokens in a window, each of which begins anew; none: 512, or as many as the model sees.
  std::optional<int64_t> context = {};
  int64_t tokens = 1 << 16;  // of the text, from its beginning, at most
  models::Warn warn = {};
};

// {"tokens", "dtypes": {name: {...}}}; tokens: those that are predicted, of each dtype
//   finite: whether all logits are,
//   perplexity: exp of the mean negative log probability of the tokens,
//   logits_kl: mean KL divergence of FP32's distribution of the next token to this dtype's, nats,
//   top1_agreement: share of the tokens before which the likeliest is FP32's, with top1_agreement_interval.
// Numbers that are not finite are null. Throws Error or io::Error.
nlohmann::json text_parity(const TextParityOptions& options);

}  // namespace plimsoll::app
