// The text of `plimsoll line`, with what FP32 makes of it: half of its windows to search with, the others held out.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/text/token_comparison.h"
#include "plimsoll/app/text/token_windows.h"
#include "plimsoll/models/freedoms.h"

namespace plimsoll::app {

enum class TextPart : uint8_t { kSearch, kHeldOut };

class LineText {
 public:
  // exact: the model in FP32. folder: of a file with its logits, which no name is left of. Throws Error for a text of
  // fewer than two windows, and as read_token_windows().
  LineText(const TextModel& exact, const TokenWindowOptions& options, const std::filesystem::path& folder);

  // Largest values of FP32's forward passes over the windows to search with.
  const models::Amaxes& amaxes() const { return amaxes_; }
  int64_t tokens(TextPart part) const;
  // Every other one; the first serves to search.
  std::vector<TokenWindow> windows(TextPart part) const;

  struct Judged {
    TokenComparison tokens;
    std::vector<double> window_means;  // of the divergences, nats
  };
  // At most so many windows are read.
  Judged compare(const TextModel& model, TextPart part, size_t most_windows = SIZE_MAX) const;

 private:
  bool is_of(TextPart part, size_t window) const { return (window % 2 == 0) == (part == TextPart::kSearch); }

  std::vector<TokenWindow> windows_;
  std::vector<at::Tensor> logits_;  // fp32 [tokens, vocabulary] of each window
  models::Amaxes amaxes_;
};

}  // namespace plimsoll::app
