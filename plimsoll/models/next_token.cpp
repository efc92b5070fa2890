#include "plimsoll/models/next_token.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace plimsoll::models {
namespace {

// From bit to bit: a branch for each token would be foreseen seldom, and take half a millisecond.
void ban_others(Scores scores, std::span<const uint64_t> allowed) {
  for (size_t begin = 0; begin < scores.size(); begin += 64) {
    const size_t count = std::min<size_t>(scores.size() - begin, 64);
    uint64_t banned = ~allowed[begin / 64] & (~uint64_t{0} >> (64 - count));
    for (; banned != 0; banned &= banned - 1) scores[begin + static_cast<size_t>(std::countr_zero(banned))] = kBanned;
  }
}

}  // namespace

int64_t next_token(std::span<const float> logits, const NextToken& next) {
  std::vector<float> scores;  // under the rules
  if (!next.rules.change_nothing() || !next.allowed.empty()) {
    scores.assign(logits.begin(), logits.end());
    apply(next.rules, {.written = next.text, .new_tokens = next.new_tokens, .ends = next.ends}, scores);
    if (!next.allowed.empty()) ban_others(scores, next.allowed);
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
