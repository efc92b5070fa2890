// `plimsoll logprobs` as a function: the log probability of each token of a text, by each of the ways in which the library
// computes it. Of one recipe whose scales depend on no other token all have the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "plimsoll/app/text/text_model.h"
#include "plimsoll/recipe/named.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

enum class LogprobsAs : uint8_t {
  kTrain,    // the forward pass of training, without a cache
  kPrefill,  // a window at once into a cache
  kDecode,   // token after token
  kServe,    // token after token of several windows together
};
inline constexpr std::array<recipe::Named<LogprobsAs>, 4> kLogprobsAs = {{{"train", LogprobsAs::kTrain},
                                                                          {"prefill", LogprobsAs::kPrefill},
                                                                          {"decode", LogprobsAs::kDecode},
                                                                          {"serve", LogprobsAs::kServe}}};

struct LogprobsOptions {
  TextModelOptions model;
  std::optional<recipe::Recipe> recipe = {};  // none: the run's, or the dtype of the weights
  std::filesystem::path data;                 // a text
  LogprobsAs as = LogprobsAs::kPrefill;
  // Tokens in a window, each of which begins anew; none: 512, or as many as the model sees.
  std::optional<int64_t> context = {};
  int64_t tokens = 1 << 12;  // of the text, from its beginning, at most
  int64_t batch = 8;         // windows together, kServe
};

struct TokenLogprob {
  int64_t token = 0;  // its place in the text
  int64_t id = 0;
  double log_probability = 0;  // of the FP32 logits, in FP64; nats
};

// In the order of the text, whose first token has none. Throws Error or io::Error.
std::vector<TokenLogprob> logprobs(const LogprobsOptions& options);

// Tokens of two files {"token", "id", "log_probability"} a line.
struct LogprobsDifference {
  int64_t tokens = 0, different = 0;
  double largest = 0;                 // nats; NaN where one is not finite in one file alone
  double mean = 0;                    // of the magnitudes, nats
  std::optional<int64_t> first = {};  // the first token that differs
};
// Throws Error where they are not of the same text, or io::Error.
LogprobsDifference logprobs_difference(const std::filesystem::path& first, const std::filesystem::path& second);

}  // namespace plimsoll::app
