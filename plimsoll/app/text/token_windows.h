// A text in windows of tokens, each of which a model reads from nothing.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "plimsoll/app/text/text_model.h"

namespace plimsoll::app {

struct TokenWindow {
  at::Tensor inputs, targets;  // int64 [tokens], of each input the token after it
};

struct TokenWindowOptions {
  std::filesystem::path data;
  std::optional<int64_t> context = {};  // tokens in a window; none: 512, or as many as the model sees
  int64_t tokens = 1 << 16;             // of the text, from its beginning, at most
  int64_t fewest = 2;                   // tokens of the text
};

// Tokens in a window unless --context says another number: 512, or as many as the model sees.
int64_t usual_window(const TextModel& model);

// At least one window. Throws UsageError for a context beyond the model's, Error for a text of too few tokens.
std::vector<TokenWindow> read_token_windows(const TextModel& model, const TokenWindowOptions& options);

// Logits of a window's inputs, fp32 [tokens, vocabulary], under the model's recipe.
at::Tensor logits_of(const TextModel& model, const TokenWindow& window);

}  // namespace plimsoll::app
