#include "plimsoll/models/logits_rules.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace plimsoll::models {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int64_t>;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// The tokens of eight that may still follow `written`.
Ids allowed(const LogitsRules& rules, const Ids& written, const Ids& ends = {1}) {
  std::vector<float> scores(8, 1.0f);
  apply(rules, {.written = written, .new_tokens = static_cast<int64_t>(written.size()) - 1, .ends = ends}, scores);
  Ids tokens;
  for (size_t token = 0; token < scores.size(); ++token) {
    if (scores[token] != kBanned) tokens.push_back(static_cast<int64_t>(token));
  }
  return tokens;
}

TEST(LogitsRules, DefaultsChangeNothing) {
  EXPECT_TRUE(LogitsRules{}.change_nothing());
  EXPECT_THAT(allowed({}, {0, 3, 3, 3}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(LogitsRules, RepetitionIsPenalizedOnceForEachTokenAndTowardsMinusInf) {
  std::vector<float> scores = {3, -3, 2, 0, kBanned};
  penalize_repetition(scores, Ids{0, 1, 1, 1, 3, 4}, 1.5);
  EXPECT_THAT(scores, ElementsAre(2.0f, -4.5f, 2.0f, 0.0f, kBanned));
  penalize_repetition(scores, Ids{}, 1.5);
  EXPECT_THAT(scores, ElementsAre(2.0f, -4.5f, 2.0f, 0.0f, kBanned));
}

TEST(LogitsRules, WrittenTokensArePenalizedByTheirNumberAndOnce) {
  std::vector<float> scores = {3, -3, 2, kBanned};
  penalize_written(scores, Ids{0, 1, 0, 0, 3}, 0.5, 0.25);
  EXPECT_THAT(scores, ElementsAre(1.25f, -3.75f, 2.0f, kBanned));
  scores = {1, 1, 1};
  apply({.frequency_penalty = 1, .presence_penalty = -0.5}, {.written = Ids{0, 0, 1}, .new_tokens = 1}, scores);
  EXPECT_THAT(scores, ElementsAre(1.0f, 0.5f, 1.0f)) << "the prompt counts for nothing";
}

TEST(LogitsRules, NgramsAreNotWrittenTwice) {
  EXPECT_THAT(allowed({.no_repeat_ngram_size = 1}, {0, 3, 5}), ElementsAre(1, 2, 4, 6, 7));
  // 3 was followed by 5 and, at the end, by nothing.
  EXPECT_THAT(allowed({.no_repeat_ngram_size = 2}, {0, 3, 5, 3}), ElementsAre(0, 1, 2, 3, 4, 6, 7));
  EXPECT_THAT(allowed({.no_repeat_ngram_size = 2}, {0, 3, 3}), ElementsAre(0, 1, 2, 4, 5, 6, 7));
  EXPECT_THAT(allowed({.no_repeat_ngram_size = 3}, {4, 3, 5, 4, 3}), ElementsAre(0, 1, 2, 3, 4, 6, 7));
  EXPECT_THAT(allowed({.no_repeat_ngram_size = 3}, {4, 3, 5, 3}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  for (const int64_t size : {3, 4, 100}) {  // no n-gram is whole
    EXPECT_EQ(allowed({.no_repeat_ngram_size = size}, {3, 3}).size(), 8U) << size;
  }
}

TEST(LogitsRules, BadWordsAreNotCompleted) {
  EXPECT_THAT(allowed({.bad_words_ids = {{2}, {7}}}, {0}), ElementsAre(0, 1, 3, 4, 5, 6));
  EXPECT_THAT(allowed({.bad_words_ids = {{3, 5}, {4, 3, 6}}}, {0, 4, 3}), ElementsAre(0, 1, 2, 3, 4, 7));
  EXPECT_THAT(allowed({.bad_words_ids = {{3, 5}, {4, 3, 6}}}, {0, 3, 4}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(allowed({.bad_words_ids = {{0, 3, 4, 5, 6}}}, {3, 4, 5}).size(), 8U);  // longer than the text
  // The end alone is no bad word; behind another token it is.
  EXPECT_THAT(allowed({.bad_words_ids = {{1}}}, {0}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(allowed({.bad_words_ids = {{3, 1}}}, {0, 3}), ElementsAre(0, 2, 3, 4, 5, 6, 7));
}

TEST(LogitsRules, NoTextEndsBeforeItsFewestTokens) {
  EXPECT_THAT(allowed({.min_new_tokens = 2}, {0, 3}), ElementsAre(0, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(allowed({.min_new_tokens = 2}, {0, 3, 3}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(LogitsRules, EachEndIsOne) {
  EXPECT_THAT(allowed({.min_new_tokens = 2}, {0, 3}, {1, 4}), ElementsAre(0, 2, 3, 5, 6, 7));
  EXPECT_EQ(allowed({.min_new_tokens = 2}, {0, 3}, {}).size(), 8U) << "a text without an end";
  EXPECT_EQ(allowed({.min_new_tokens = 2}, {0, 3}, {-1, 8, int64_t{1} << 40}).size(), 8U) << "ends that are no token";
  EXPECT_THAT(allowed({.bad_words_ids = {{0}, {1}, {4}}}, {0}, {1, 4}), ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(LogitsRules, HoldTogether) {
  const LogitsRules rules{.no_repeat_ngram_size = 1, .bad_words_ids = {{6}}, .min_new_tokens = 9};
  EXPECT_THAT(allowed(rules, {0, 3}), ElementsAre(2, 4, 5, 7));
}

TEST(LogitsRules, MistakesAreNamed) {
  for (const LogitsRules& rules :
       {LogitsRules{.repetition_penalty = 0}, LogitsRules{.repetition_penalty = -1},
        LogitsRules{.repetition_penalty = kInf}, LogitsRules{.repetition_penalty = kNan},
        LogitsRules{.no_repeat_ngram_size = -1}, LogitsRules{.min_new_tokens = -1}, LogitsRules{.bad_words_ids = {{}}},
        LogitsRules{.bad_words_ids = {{2}, {8}}}, LogitsRules{.bad_words_ids = {{-1}}}}) {
    EXPECT_THROW(check(rules, 8), c10::Error);
  }
  check({.repetition_penalty = 0.5, .bad_words_ids = {{7}}}, 8);
}

TEST(LogitsRules, InfAndNanAreNotFiniteWhereverTheyStand) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const float bad : {kInf, -kInf, kNan}) {
    for (size_t place = 0; place < 17; ++place) {
      std::vector<float> scores(17, -kLargest);
      EXPECT_TRUE(are_finite(scores));
      scores[place] = bad;
      EXPECT_FALSE(are_finite(scores)) << bad << " at " << place;
    }
  }
  EXPECT_TRUE(are_finite({}));
}

}  // namespace
}  // namespace plimsoll::models
