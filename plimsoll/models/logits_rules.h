// Rules that change the scores of the next token by what stands before it: those of Hugging Face's logits processors,
// on one row of scores. Source: transformers 5, generation/logits_process.py.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace plimsoll::models {

using Scores = std::span<float>;                 // [vocabulary]: logits or log probabilities
using WrittenTokens = std::span<const int64_t>;  // of the same text so far, what it starts with first

// The score of a token that is not written.
inline constexpr float kBanned = -std::numeric_limits<float>::infinity();

// A negative score of a token that was written is multiplied by the penalty, another one is divided by it.
void penalize_repetition(Scores scores, WrittenTokens written, double penalty);

// `frequency` less for each time that a token was written, and `presence` less for one that was. Source: OpenAI's API.
void penalize_written(Scores scores, WrittenTokens written, double frequency, double presence);

// No run of `size` tokens is written twice: -Inf for each token that would complete one again.
void ban_repeated_ngrams(Scores scores, WrittenTokens written, int64_t size);

// -Inf for the last token of the word, at least one token, if its other tokens were written last.
void ban_word(Scores scores, WrittenTokens written, std::span<const int64_t> word);

// The rules that hold. The defaults change nothing.
struct LogitsRules {
  double repetition_penalty = 1;
  int64_t no_repeat_ngram_size = 0;                      // 0: no such rule
  std::vector<std::vector<int64_t>> bad_words_ids = {};  // an end alone is no word
  int64_t min_new_tokens = 0;                            // no end is written before
  double frequency_penalty = 0, presence_penalty = 0;    // of the new tokens alone

  bool change_nothing() const;
};

// An error that names the rule at fault.
void check(const LogitsRules& rules, int64_t vocabulary);

struct TextSoFar {
  WrittenTokens written;
  int64_t new_tokens = 0;              // of them
  std::span<const int64_t> ends = {};  // tokens that end a text, each; those beyond the vocabulary are never written
};

// The rules in Hugging Face's order: repetition, n-grams, words, the end.
void apply(const LogitsRules& rules, const TextSoFar& text, Scores scores);

// Whether no score is Inf or NaN.
bool are_finite(std::span<const float> scores);

}  // namespace plimsoll::models
