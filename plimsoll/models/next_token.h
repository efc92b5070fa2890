// The next token of a text, of the logits that the model gives for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "plimsoll/models/logits_rules.h"
#include "plimsoll/nn/sampler.h"

namespace plimsoll::models {

struct NextToken {
  WrittenTokens text = {};             // so far, the prompt first
  int64_t new_tokens = 0;              // of them, behind the prompt
  std::span<const int64_t> ends = {};  // tokens that end a text, for the rules
  const LogitsRules& rules;
  const nn::SamplingOptions& sampling;
  std::span<const uint64_t> allowed = {};  // a bit a token, of those that the rules may leave; empty: all
  std::optional<double> uniform = {};      // in [0, 1), of the draw; none: the likeliest is taken
};

// logits [vocabulary], finite. An error if the rules allow no token.
int64_t next_token(std::span<const float> logits, const NextToken& next);

// Log probabilities of tokens by the model: before rules and temperature.
class LogProbabilities {
 public:
  explicit LogProbabilities(std::span<const float> logits);
  double of(int64_t token) const { return logits_[static_cast<size_t>(token)] - largest_ - log_sum_; }

 private:
  std::span<const float> logits_;
  double largest_, log_sum_;
};

inline double log_probability(std::span<const float> logits, int64_t token) {
  return LogProbabilities(logits).of(token);
}

}  // namespace plimsoll::models
