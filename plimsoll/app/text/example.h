// Texts that a model is fine-tuned on, as tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace plimsoll::app {

struct Example {
  std::vector<int32_t> tokens;  // the last one counts
  std::vector<uint8_t> counts;  // of each token: whether its prediction is learned; 0 of the first
  std::string place;            // FILE:LINE

  int64_t counted() const;
  // Tokens that the model reads: all but the last, which it predicts alone.
  int64_t read() const { return static_cast<int64_t>(tokens.size()) - 1; }
};

struct Examples {
  std::vector<Example> all;
  int64_t cut = 0;      // longer than the context, without their ends
  int64_t skipped = 0;  // longer than the context, left out
  int64_t joined = 0;   // replies and completions whose first token begins in what stands before them

  int64_t counted() const;
};

}  // namespace plimsoll::app
