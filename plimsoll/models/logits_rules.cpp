#include "plimsoll/models/logits_rules.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace plimsoll::models {
namespace {

float& score_of(Scores scores, int64_t token) { return scores[static_cast<size_t>(token)]; }

}  // namespace

void penalize_repetition(Scores scores, WrittenTokens written, double penalty) {
  const auto factor = static_cast<float>(penalty);
  std::vector<int64_t> tokens(written.begin(), written.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (const int64_t token : tokens) {
    float& score = score_of(scores, token);
    score = score < 0 ? score * factor : score / factor;
  }
}

void penalize_written(Scores scores, WrittenTokens written, double frequency, double presence) {
  std::vector<int64_t> tokens(written.begin(), written.end());
  std::sort(tokens.begin(), tokens.end());
  for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    while (end < tokens.size() && tokens[end] == tokens[begin]) ++end;
    float& score = score_of(scores, tokens[begin]);
    score = static_cast<float>(score - (frequency * static_cast<double>(end - begin) + presence));
  }
}

void ban_repeated_ngrams(Scores scores, WrittenTokens written, int64_t size) {
  const auto before = static_cast<size_t>(size - 1);  // tokens of an n-gram that stand before its last
  if (written.size() <= before) return;
  const WrittenTokens last = written.last(before);
  for (size_t end = before; end < written.size(); ++end) {
    const WrittenTokens earlier = written.subspan(end - before, before);
    if (std::equal(earlier.begin(), earlier.end(), last.begin())) score_of(scores, written[end]) = kBanned;
  }
}

void ban_word(Scores scores, WrittenTokens written, std::span<const int64_t> word) {
  const std::span<const int64_t> start = word.first(word.size() - 1);
  if (start.size() > written.size()) return;
  const WrittenTokens last = written.last(start.size());
  if (std::equal(start.begin(), start.end(), last.begin())) score_of(scores, word.back()) = kBanned;
}

bool LogitsRules::change_nothing() const {
  return repetition_penalty == 1 && no_repeat_ngram_size == 0 && bad_words_ids.empty() && min_new_tokens == 0 &&
         frequency_penalty == 0 && presence_penalty == 0;
}

void check(const LogitsRules& rules, int64_t vocabulary) {
  TORCH_CHECK_VALUE(rules.repetition_penalty > 0 && std::isfinite(rules.repetition_penalty),
                    "generate: expected a finite repetition_penalty > 0, got ", rules.repetition_penalty);
  TORCH_CHECK_VALUE(rules.no_repeat_ngram_size >= 0 && rules.min_new_tokens >= 0,
                    "generate: expected no_repeat_ngram_size and min_new_tokens >= 0, got ", rules.no_repeat_ngram_size,
                    " and ", rules.min_new_tokens);
  TORCH_CHECK_VALUE(std::isfinite(rules.frequency_penalty) && std::isfinite(rules.presence_penalty),
                    "generate: expected finite frequency_penalty and presence_penalty, got ", rules.frequency_penalty,
                    " and ", rules.presence_penalty);
  for (const std::vector<int64_t>& word : rules.bad_words_ids) {
    const bool fits =
        std::all_of(word.begin(), word.end(), [&](int64_t token) { return token >= 0 && token < vocabulary; });
    TORCH_CHECK_VALUE(!word.empty() && fits, "generate: expected bad_words_ids of at least one token each, in [0, ",
                      vocabulary, "), got ", c10::IntArrayRef(word));
  }
}

void apply(const LogitsRules& rules, const TextSoFar& text, Scores scores) {
  if (rules.repetition_penalty != 1) penalize_repetition(scores, text.written, rules.repetition_penalty);
  if (rules.frequency_penalty != 0 || rules.presence_penalty != 0) {
    penalize_written(scores, text.written.last(static_cast<size_t>(text.new_tokens)), rules.frequency_penalty,
                     rules.presence_penalty);
  }
  if (rules.no_repeat_ngram_size > 0) ban_repeated_ngrams(scores, text.written, rules.no_repeat_ngram_size);
  for (const std::vector<int64_t>& word : rules.bad_words_ids) {
    const bool is_end = word.size() == 1 && std::ranges::find(text.ends, word.front()) != text.ends.end();
    if (!is_end) ban_word(scores, text.written, word);
  }
  if (text.new_tokens >= rules.min_new_tokens) return;
  for (const int64_t end : text.ends) {
    if (end >= 0 && end < std::ssize(scores)) score_of(scores, end) = kBanned;
  }
}

bool are_finite(std::span<const float> scores) {
  bool all = true;
  for (const float score : scores) all &= score - score == 0;  // Inf - Inf is NaN
  return all;
}

}  // namespace plimsoll::models
