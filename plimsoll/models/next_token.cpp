#include "plimsoll/models/next_token.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace plimsoll::models {

int64_t next_token(std::span<const float> logits, const NextToken& next) {
  std::vector<float> scores;  // under the rules
  if (!next.rules.change_nothing() || !next.allowed.empty()) {
    scores.assign(logits.begin(), logits.end());
    apply(next.rules, {.written = next.text, .new_tokens = next.new_tokens}, scores);
    for (size_t token = 0; token < scores.size() && !next.allowed.empty(); ++token) {
      if ((next.allowed[token / 64] >> (token % 64) & 1) == 0) scores[token] = kBanned;
    }
    logits = scores;
  }
  const auto likeliest = std::ranges::max_element(logits);
  TORCH_CHECK(*likeliest > kBanned, "generate: expected a token that the rules allow, got none");
  if (!next.uniform) return likeliest - logits.begin();
  return nn::sample(logits, next.sampling, *next.uniform);
}

LogProbabilities::LogProbabilities(std::span<const float> logits)
    : logits_(logits), largest_(*std::ranges::max_element(logits)) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest_);
  log_sum_ = std::log(sum);
}

}  // namespace plimsoll::models
