#include "plimsoll/gauge/channel_balance.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"

namespace plimsoll::gauge {
namespace {

using models::Exponents;
using models::Freedoms;
using models::GaugedChannels;

// Rows of "up" and columns of "down", six channels.
Freedoms rows_and_columns() {
  const std::vector<int64_t> channel = {0, 1, 2, 3, 4, 5};
  const auto of = [&](int64_t dim) { return std::make_shared<const GaugedChannels>(GaugedChannels{dim, channel}); };
  return {.pairs = {"up"},
          .weights = {{.name = "up_weight", .pair = 0, .channels = of(0)},
                      {.name = "up_bias", .pair = 0, .channels = of(0)},
                      {.name = "down_weight", .pair = 0, .sign = -1, .channels = of(1)},
                      {.name = "norm"}},
          .values = {}};
}

std::map<std::string, at::Tensor> even_weights() {
  return {
      {"up_weight", at::full({6, 3}, 0.5)}, {"up_bias", at::full({6}, 0.5)}, {"down_weight", at::full({2, 6}, 2.0)}};
}

std::vector<int> channels_of(const std::map<std::string, at::Tensor>& weights) {
  const Exponents exponents = balanced_channels(rows_and_columns(), weights);
  EXPECT_EQ(exponents.residual, 0);
  EXPECT_EQ(exponents.pairs, std::vector<int>{0});
  return exponents.channels.empty() ? std::vector<int>() : exponents.channels.at(0);
}

TEST(BalancedChannels, HaveHalfOfTheBitsByWhichTheyStandOut) {
  auto weights = even_weights();
  EXPECT_EQ(channels_of(weights), std::vector<int>());
  weights["up_weight"][2].mul_(1 << 10);  // and nothing takes it back
  EXPECT_EQ(channels_of(weights), std::vector<int>({0, 0, -5, 0, 0, 0}));
  weights["down_weight"].select(1, 2).div_(1 << 10);
  EXPECT_EQ(channels_of(weights), std::vector<int>({0, 0, -10, 0, 0, 0}));
  weights["up_bias"][4] = 0.5 * (1 << 9);
  weights["up_weight"][1].div_(1 << 8);  // as large as before by its bias
  weights["down_weight"].select(1, 0).mul_(1 << 12);
  EXPECT_EQ(channels_of(weights), std::vector<int>({6, 0, -10, 0, -5, 0}));
}

TEST(BalancedChannels, AreNoneOfLessThanFourBits) {
  auto weights = even_weights();
  weights["up_weight"][2].mul_(64);
  EXPECT_EQ(channels_of(weights), std::vector<int>());
  weights["up_weight"][2].mul_(2);
  EXPECT_EQ(channels_of(weights), std::vector<int>({0, 0, -4, 0, 0, 0}));
}

TEST(BalancedChannels, LeaveChannelsWithoutWeights) {
  auto weights = even_weights();
  weights["up_weight"][1].zero_();
  weights["up_bias"][1].zero_();
  weights["down_weight"].select(1, 5).zero_();
  weights["up_weight"][0].mul_(1 << 12);
  EXPECT_EQ(channels_of(weights), std::vector<int>({-6, 0, 0, 0, 0, 0}));
  weights["up_weight"][5].mul_(1 << 9);  // which nothing reads
  EXPECT_EQ(channels_of(weights), std::vector<int>({-6, 0, 0, 0, 0, -9}));
  for (auto& [name, weight] : weights) weight.zero_();
  EXPECT_EQ(channels_of(weights), std::vector<int>());
}

TEST(BalancedChannels, OfOnePlusAWeightAreWhatFp32Holds) {
  const auto channels = std::make_shared<const GaugedChannels>(GaugedChannels{.channel = {0, 1, 2, 3, 4}});
  const Freedoms freedoms = {
      .pairs = {"query_norm"},
      .weights = {{.name = "query", .pair = 0, .one_plus = true, .channels = channels},
                  {.name = "key", .pair = 0, .sign = -1, .one_plus = true, .channels = channels}},
      .values = {}};
  const at::Tensor query = at::full({5}, 0.25), key = at::full({5}, 0.25);
  query[1] = std::ldexp(1.25F, -12) - 1;
  key[1] = std::ldexp(1.25F, 12) - 1;
  EXPECT_EQ(balanced_channels(freedoms, {{"query", query}, {"key", key}}).channels.at(0),
            std::vector<int>({0, 12, 0, 0, 0}));
  key[3] = std::ldexp(1.0F, 10);  // half of the bits are 5
  EXPECT_EQ(balanced_channels(freedoms, {{"query", query}, {"key", key}}).channels.at(0)[3], 5);
  query[3] = std::ldexp(1.0F, -30);  // 2^5 (1 + w) - 1 has 30 bits, 2^4 (1 + w) - 1 has 29
  EXPECT_EQ(balanced_channels(freedoms, {{"query", query}, {"key", key}}).channels.at(0)[3], 0);
  query[3] = std::ldexp(1.0F, -19);
  EXPECT_EQ(balanced_channels(freedoms, {{"query", query}, {"key", key}}).channels.at(0)[3], 5);
}

// Outliers that exponents graft onto the weights of each family go away by those that are found.
TEST(BalancedChannels, TakeOutliersOutOfEachFamilyWithTheBitsOfFp32) {
  const at::NoGradGuard no_grad;
  at::manual_seed(3);
  for (models::DecoderConfig config : models::testing::small_decoders()) {
    const std::string family = models::traits_of(config.family).model_type;
    models::Decoder model(config);
    model->eval();
    const Freedoms freedoms = model->freedoms();
    Exponents grafted{.pairs = std::vector<int>(freedoms.pairs.size())};
    for (const models::GaugedTensor& tensor : freedoms.weights) {
      if (!tensor.pair || !tensor.channels) continue;
      const auto& channel = tensor.channels->channel;
      std::vector<int>& exponents = grafted.channels[*tensor.pair];
      exponents.resize(static_cast<size_t>(1 + *std::max_element(channel.begin(), channel.end())));
      exponents[0] = 11;
      exponents.back() = -9;
      // Multiples of 2^-10: of 1 + w a power of two leaves a w that FP32 holds.
      if (tensor.one_plus)
        model->weights_with_freedom().at(tensor.name).uniform_(-0.5, 0.5).mul_(1024).round_().div_(1024);
    }
    ASSERT_GE(grafted.channels.size(), static_cast<size_t>(config.layers)) << family;
    const at::Tensor tokens = at::randint(config.vocabulary, {2, 9}, at::kLong), want = model->logits(tokens);
    const auto with_outliers = model->multiplied(grafted);
    EXPECT_TRUE(with_outliers->logits(tokens).equal(want)) << family;
    const Exponents found = balanced_channels(freedoms, with_outliers->weights_with_freedom());
    const auto mended = with_outliers->take_multiplied(found);
    EXPECT_TRUE(mended->logits(tokens).equal(want)) << family;
    // Random weights differ by chance in what a channel's largest is: a bit or two of the eleven are left.
    ASSERT_EQ(found.channels.size(), grafted.channels.size()) << family;
    for (const auto& [pair, exponents] : found.channels) {
      const std::vector<int>& graft = grafted.channels.at(pair);
      for (size_t i = 0; i < exponents.size(); ++i) {
        EXPECT_LE(std::abs(exponents[i] + graft[i]), 2) << family << " " << freedoms.pairs[pair] << " " << i;
      }
    }
  }
}

TEST(BalancedChannels, HaveAnInverse) {
  const Exponents exponents{.residual = 3, .pairs = {1, -2}, .channels = {{1, {4, 0, -5}}}};
  const Exponents back = inverse(exponents);
  EXPECT_EQ(back.residual, -3);
  EXPECT_EQ(back.pairs, std::vector<int>({-1, 2}));
  EXPECT_EQ(back.channels.at(1), std::vector<int>({-4, 0, 5}));
}

}  // namespace
}  // namespace plimsoll::gauge
