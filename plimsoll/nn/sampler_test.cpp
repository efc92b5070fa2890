#include "plimsoll/nn/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace plimsoll::nn {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr std::array<float, 4> kLogits = {0.0f, 2.0f, 1.0f, 2.0f};

TEST(Sampler, ZeroTemperatureTakesTheFirstLikeliest) {
  for (const double uniform : {0.0, 0.5, 0.999}) EXPECT_EQ(sample(kLogits, {.temperature = 0}, uniform), 1);
}

TEST(Sampler, FrequenciesAreThoseOfTheSoftmax) {
  constexpr int kDraws = 100'000;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::array<int, 4> counts{};
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(sample(kLogits, {.temperature = temperature}, (i + 0.5) / kDraws))];
    }
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    // Evenly spaced draws miss each frequency by at most one at either end of its interval.
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(counts[i], kDraws * std::exp(kLogits[i] / temperature) / total, 2);
  }
}

TEST(Sampler, TopKDrawsFromTheLikeliestOnly) {
  for (double uniform = 0; uniform < 1; uniform += 0.01) {
    const int64_t token = sample(kLogits, {.temperature = 5, .top_k = 2}, uniform);
    EXPECT_TRUE(token == 1 || token == 3);
  }
  EXPECT_EQ(sample(kLogits, {.temperature = 1, .top_k = 100}, 0.9999), 0);
}

TEST(Sampler, TopPDrawsFromAsFewAsHoldTheShare) {
  // exp(2) twice, exp(1), 1 of their sum: 0.399, 0.399, 0.147, 0.054.
  for (double uniform = 0; uniform < 1; uniform += 0.01) {
    EXPECT_EQ(sample(kLogits, {.temperature = 1, .top_p = 0.39}, uniform), 1);
    EXPECT_NE(sample(kLogits, {.temperature = 1, .top_p = 0.79}, uniform), 2);
    EXPECT_NE(sample(kLogits, {.temperature = 1, .top_p = 0.94}, uniform), 0);
  }
  EXPECT_EQ(sample(kLogits, {.temperature = 1, .top_p = 0.94}, 0.999), 2);
  EXPECT_EQ(sample(kLogits, {.temperature = 1, .top_p = 0.95}, 0.999), 0);
  EXPECT_EQ(sample(kLogits, {.temperature = 1, .top_p = 0}, 0.999), 1);
  // Each of the two that top_k leaves has half.
  EXPECT_EQ(sample(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.49}, 0.999), 1);
}

TEST(Sampler, MinPDrawsFromTheTokensWithThatShareOfTheLikeliest) {
  // Shares of the likeliest: 1 twice, exp(-1) = 0.368, exp(-2) = 0.135.
  const auto last = [](const SamplingOptions& options) { return sample(kLogits, options, 0.999); };
  EXPECT_EQ(last({.temperature = 1, .min_p = 0.13}), 0);
  EXPECT_EQ(last({.temperature = 1, .min_p = 0.14}), 2);
  EXPECT_EQ(last({.temperature = 1, .min_p = 0.37}), 3);
  EXPECT_EQ(last({.temperature = 1, .min_p = 1}), 3);
  EXPECT_EQ(last({.temperature = 2, .min_p = 0.37}), 2) << "shares are those after the temperature";
  EXPECT_EQ(last({.temperature = 1, .top_p = 0.39, .min_p = 0.13}), 1) << "top_p leaves fewer";
}

TEST(Sampler, TokensOfMinusInfAreNeverDrawn) {
  constexpr std::array<float, 4> kBarred = {kNever, 1.0f, kNever, 0.5f};
  for (const double uniform : {0.0, 0.5, 0.9, std::nextafter(1.0, 0.0)}) {
    for (const int64_t top_k : {0, 3}) {
      EXPECT_EQ(sample(kBarred, {.temperature = 1, .top_k = top_k}, uniform) % 2, 1) << uniform;
    }
  }
}

TEST(Sampler, LogitsOfDrawsAreFiniteWhereATokenMayBeDrawn) {
  const auto draws = [](const SamplingOptions& options) { return logits_of_draws(kLogits, options); };
  EXPECT_EQ(draws({.temperature = 0.5}), (std::vector<float>{0, 4, 2, 4}));
  EXPECT_EQ(draws({.temperature = 0.5, .top_k = 2}), (std::vector<float>{kNever, 4, kNever, 4}));
  EXPECT_EQ(draws({.temperature = 1, .top_p = 0.9}), (std::vector<float>{kNever, 2, 1, 2}));
  EXPECT_EQ(draws({.temperature = 0}), (std::vector<float>{kNever, 2, kNever, kNever}));
}

TEST(Sampler, DrawsGoThroughTheTokensFromTheLikeliestOn) {
  // Numbers of all sizes and both signs, ties and both zeros.
  std::vector<float> logits;
  for (int i = 0; i < 3000; ++i) {
    const float size = std::ldexp(static_cast<float>(i * 7919 % 251) - 125.0f, i * 31 % 8 - 6);
    logits.push_back(i % 5 == 0 ? -0.0f : i % 7 == 0 ? 0.0f : size);
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  // So hot that all are about equally likely: each has its own interval of 1 / 3000, the likelier ones a longer one.
  const SamplingOptions hot = {.temperature = 1e9};
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(sample(logits, hot, (static_cast<double>(i) + 0.5) / 3000), order[i]) << i;
  }
}

TEST(Sampler, LastDrawStaysInRange) {
  const double below_one = std::nextafter(1.0, 0.0);
  EXPECT_EQ(sample(kLogits, {.temperature = 1}, below_one), 0);
}

}  // namespace
}  // namespace plimsoll::nn
