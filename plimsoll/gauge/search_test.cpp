#include "plimsoll/gauge/search.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace plimsoll::gauge {
namespace {

ExponentCounts counts_of(std::vector<float> values) {
  const auto size = static_cast<int64_t>(values.size());
  return count_exponents(at::from_blob(values.data(), {size}).clone());
}

TEST(Fp16Range, HeadroomIsTheDistanceToTheLargestNumber) {
  EXPECT_EQ(fp16_headroom(65504), 0);
  EXPECT_EQ(fp16_headroom(65504, -3), 3);
  EXPECT_EQ(fp16_headroom(65504.0f / 4, 3), -1);
  EXPECT_EQ(fp16_headroom(0), std::numeric_limits<double>::infinity());
}

TEST(Fp16Range, BitsAreLostBelowTheSmallestNormalNumber) {
  const ExponentCounts counts = counts_of({0x1p-14f, -0x1.8p-14f, 0, 0x1p-12f, 0x1p-12f});
  EXPECT_EQ(counts.elements, 4);
  EXPECT_EQ(counts.amax, 0x1p-12f);
  EXPECT_EQ(lost_bits(counts, 0), 0);
  EXPECT_EQ(lost_bits(counts, -1), 0.5);  // two of four lose one bit
  EXPECT_EQ(lost_bits(counts, -4), (4 + 4 + 2 + 2) / 4.0);
  EXPECT_EQ(lost_bits(counts, -40), 11);  // a number has no more
  EXPECT_EQ(lost_bits(counts_of({0, 0}), -40), 0);
  EXPECT_EQ(lost_bits(counts_of({}), 0), 0);
}

TEST(Fp16Range, OnePlusAWeightLosesBitsBelowOneHalf) {
  const ExponentCounts counts = count_exponents_of_one_plus(at::tensor({-0.5f, -0.75f, 0.0f, 3.0f}));
  EXPECT_EQ(counts.amax, 4);
  EXPECT_EQ(lost_bits(counts, 0), 0.25);  // 0.25 is stored as -0.75, a multiple of 2^-11 in FP16: one bit
  EXPECT_EQ(lost_bits(counts, -2), (2 + 3 + 1 + 0) / 4.0);
}

// A stream of one norm, and one pair whose second half writes to the stream.
struct Problem {
  models::Freedoms freedoms{
      .pairs = {"first"},
      .weights = {{.name = "embedding", .residual = true},
                  {.name = "first", .pair = 0},
                  {.name = "second", .residual = true, .pair = 0, .sign = -1}},
      .values = {{.name = "stream", .residual = true}, {.name = "between", .pair = 0}, {.name = "fixed"}}};
  WeightRanges weights{{"embedding", counts_of({1, 0.5})}, {"first", counts_of({0.25})}, {"second", counts_of({0.25})}};
  models::Amaxes values{{"stream", 100}, {"between", 10}, {"fixed", 1}};

  models::Exponents run(int headroom_bits = 3) const { return search(freedoms, weights, values, headroom_bits); }
};

TEST(Search, WhatFitsStays) {
  const models::Exponents exponents = Problem().run();
  EXPECT_EQ(exponents.residual, 0);
  EXPECT_EQ(exponents.pairs, std::vector<int>{0});
}

TEST(Search, TheStreamShrinksToTheHeadroomAskedFor) {
  Problem problem;
  problem.values["stream"] = 1.9e6f;
  for (const int headroom : {0, 3, 6}) {
    const models::Exponents exponents = problem.run(headroom);
    EXPECT_GE(fp16_headroom(1.9e6f, exponents.residual), headroom);
    EXPECT_LT(fp16_headroom(1.9e6f, exponents.residual + 1), headroom) << "more was lost than needed";
  }
}

TEST(Search, APairSharesWhatNeitherCanHold) {
  Problem problem;
  problem.values["between"] = 1e6f;
  const models::Exponents exponents = problem.run();
  EXPECT_EQ(exponents.residual, 0);
  EXPECT_EQ(exponents.pairs, std::vector<int>{-7});  // 1e6 / 2^7 = 7812 <= 65504 / 2^3
}

TEST(Search, WeightsHaveToFitAndNoMore) {
  for (const float amax : {0x1.ffcp15f, 0x1p16f}) {
    Problem problem;
    problem.weights["first"] = counts_of({amax});
    EXPECT_EQ(problem.run().pairs, std::vector<int>{amax > 65504 ? -1 : 0});
  }
}

TEST(Search, WeightsThatUnderflowAreLifted) {
  Problem problem;
  problem.weights["second"] = counts_of({0x1p-20f, 0x1p-21f});
  const models::Exponents exponents = problem.run();
  EXPECT_EQ(exponents.pairs, std::vector<int>{-7});
  EXPECT_EQ(lost_bits(problem.weights["second"], exponents.residual + 7), 0);
}

TEST(Search, WhatHasNoFreedomDoesNotStopTheRest) {
  Problem problem;
  problem.values["fixed"] = 1e6f;
  problem.values["stream"] = 1e6f;
  EXPECT_EQ(problem.run().residual, -7);
}

TEST(Search, IsTheBestOfAllExponents) {
  at::manual_seed(5);
  for (int trial = 0; trial < 5; ++trial) {
    Problem problem;
    const at::Tensor scales = at::randn({5}).mul_(8).exp2_();
    const float* scale = scales.const_data_ptr<float>();
    problem.weights["embedding"] = count_exponents(at::randn({50}) * scale[0]);
    problem.weights["first"] = count_exponents(at::randn({50}) * scale[1]);
    problem.weights["second"] = count_exponents(at::randn({50}) * scale[2]);
    problem.values["stream"] = scale[3] * 1e3f;
    problem.values["between"] = scale[4] * 1e3f;
    const auto missing_and_lost = [&](int residual, int pair) {
      double missing = 0, lost = (std::abs(residual) + std::abs(pair)) / 64.0;
      const auto add = [&](float amax, int exponent, int headroom) {
        missing += std::pow(std::max(0.0, headroom - std::log2(65504.0 / amax) + exponent), 2);
      };
      const auto weight = [&](const char* name, int exponent) {
        add(problem.weights[name].amax, exponent, 0);
        lost += lost_bits(problem.weights[name], exponent);
      };
      weight("embedding", residual);
      weight("first", pair);
      weight("second", residual - pair);
      add(problem.values["stream"], residual, 3);
      add(problem.values["between"], pair, 3);
      return std::pair(missing, lost);
    };
    const models::Exponents found = problem.run();
    const auto [missing, lost] = missing_and_lost(found.residual, found.pairs[0]);
    // Roundings, on either side: of a headroom and its square 5, of the sum of either kind 5.
    const double missing_rounding = 20 * 0x1p-53 * (1 + missing), lost_rounding = 20 * 0x1p-53 * (1 + lost);
    for (int residual = -40; residual <= 40; ++residual) {
      for (int pair = -40; pair <= 40; ++pair) {
        const auto [other_missing, other_lost] = missing_and_lost(residual, pair);
        const bool better =
            other_missing < missing - missing_rounding ||
            (std::abs(other_missing - missing) <= missing_rounding && other_lost < lost - lost_rounding);
        EXPECT_FALSE(better) << trial << ": " << residual << ", " << pair;
      }
    }
  }
}

TEST(RangeCosts, GradientsShrinkAsTheirValuesGrow) {
  // These gradients lack 4 and 2 bits of headroom, which an exponent of their value takes off.
  const Problem problem;
  const models::Amaxes gradients = {{"stream", 2 * 65504.0f}, {"between", 65504.0f / 2}};
  const RangeCosts costs(problem.freedoms, problem.weights, problem.values, 3, gradients);
  EXPECT_EQ(costs.best().residual, 4);
  EXPECT_EQ(costs.best().pairs, std::vector<int>{2});
  EXPECT_EQ(costs.of(costs.best()).beyond, 0);
  EXPECT_GT(costs.of({.residual = 3, .pairs = {2}}).beyond, 0);
  EXPECT_GT(costs.of({.residual = 4, .pairs = {1}}).beyond, 0);
}

TEST(Search, InfiniteAndUnknownAmaxesAreNamed) {
  Problem infinite;
  infinite.values["stream"] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(infinite.run(), c10::Error);
  Problem unknown;
  unknown.values.erase("between");
  EXPECT_THROW(unknown.run(), c10::Error);
}

}  // namespace
}  // namespace plimsoll::gauge
