// `plimsoll parity` of a decoder-only model: several dtypes on a text, each against FP32 of the same directory or of another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "plimsoll/app/text/outlier.h"
#include "plimsoll/models/load.h"

namespace plimsoll::app {

struct TextParityOptions {
  std::filesystem::path model;              // a Hugging Face directory
  std::filesystem::path against = {};       // a directory whose FP32 is the reference; empty: that of `model`
  std::filesystem::path data;               // a text
  std::vector<models::WeightDtype> dtypes;  // not kAsStored
  // Tokens in a window, each of which begins anew; none: 512, or as many as the model sees, of both the smaller number.
  std::optional<int64_t> context = {};
  int64_t tokens = 1 << 16;             // of the text, from its beginning, at most
  std::optional<Outlier> outlier = {};  // that the model gets first; none with `against`
  models::Warn warn = {};
  std::function<void()> check = [] {};  // called before each window is read; it may throw
};

// {"tokens", "dtypes": {name: {...}}}; tokens: those that are predicted, of each dtype
//   finite: whether all logits are,
//   perplexity: exp of the mean negative log probability of the tokens,
//   logits_kl: mean KL divergence of FP32's distribution of the next token to this dtype's, nats,
//   logits_kl_p99, logits_kl_p999: what 99 % and 99.9 % of the tokens do not exceed,
//   top1_agreement: share of the tokens before which the likeliest is FP32's, with top1_agreement_interval,
//   top5_agreement: share of those before which FP32's likeliest is among the five likeliest,
//   bytes_per_weight: of its weights, codes with their scales,
//   tokens_per_s: that it read, in windows.
// With `against` also "model" and "against", the directories as given, and "reference", what FP32 of `against` has of the
// members above: {"finite", "perplexity", "bytes_per_weight", "tokens_per_s"}; the text is read with its tokenizer. Another
// vocabulary, other tokens or fewer tokens that the model sees are an Error before anything is computed.
// Numbers that are not finite are null. Throws Error or io::Error.
nlohmann::json text_parity(const TextParityOptions& options);

}  // namespace plimsoll::app
