#include "plimsoll/amp/loss_scale_rule.h"

#include <gtest/gtest.h>

namespace plimsoll::amp {
namespace {

constexpr StepEvidence kClean, kOverflow{.found_inf = true};

TEST(LossScale, HalvesAtOnceAndDoublesAfterAnIntervalOfCleanSteps) {
  const LossScaleRule rule{.growth_interval = 3};
  LossScale state{.scale = 16};
  state.update(rule, kClean);
  state.update(rule, kOverflow);
  EXPECT_EQ(state.scale, 8);
  EXPECT_EQ(state.growth_tracker, 0);
  for (int i = 0; i < 2; ++i) state.update(rule, kClean);
  EXPECT_EQ(state.scale, 8);
  EXPECT_EQ(state.growth_tracker, 2);
  state.update(rule, kClean);
  EXPECT_EQ(state.scale, 16);
  EXPECT_EQ(state.growth_tracker, 0);
}

TEST(LossScale, BearsOverflowsUpToTheHysteresisUntilItMayGrow) {
  const LossScaleRule rule{.growth_interval = 2, .hysteresis = 3};
  LossScale state{.scale = 16};
  const auto after = [&](const StepEvidence& seen) {
    state.update(rule, seen);
    return state.scale;
  };
  EXPECT_EQ(after(kOverflow), 16);
  EXPECT_EQ(after(kClean), 16) << "one clean step takes no overflow back";
  EXPECT_EQ(after(kOverflow), 16);
  EXPECT_EQ(state.growth_tracker, 0);
  EXPECT_EQ(after(kOverflow), 8);
  EXPECT_EQ(after(kOverflow), 4);
  for (const float expected : {4.0f, 8.0f}) EXPECT_EQ(after(kClean), expected);
  for (const float expected : {8.0f, 8.0f, 4.0f}) EXPECT_EQ(after(kOverflow), expected);
}

TEST(LossScale, IsRoundedToFp32AfterEachStep) {
  const LossScaleRule rule{.growth_factor = 1.1, .growth_interval = 1};
  LossScale state{.scale = 3};
  for (int i = 0; i < 5; ++i) state.update(rule, kClean);
  auto expected = 3.0f;
  for (int i = 0; i < 5; ++i) expected = static_cast<float>(static_cast<double>(expected) * 1.1);
  EXPECT_EQ(state.scale, expected);
}

TEST(LossScale, StopsAtItsBoundsAndBelowInf) {
  const LossScaleRule rule{.growth_interval = 1, .min_scale = 3, .max_scale = 20};
  LossScale state{.scale = 16};
  state.update(rule, kClean);
  EXPECT_EQ(state.scale, 20);
  for (int i = 0; i < 5; ++i) state.update(rule, kOverflow);
  EXPECT_EQ(state.scale, 3);
  LossScale below{.scale = 2};
  below.update(rule, kOverflow);
  EXPECT_EQ(below.scale, 2) << "a bound that it is outside of moves it no further";
  LossScale largest{.scale = 0x1p127f};
  largest.update({.growth_interval = 1}, kClean);
  EXPECT_EQ(largest.scale, 0x1p127f);
}

TEST(LossScale, WithoutAHistogramTheAutomaticRuleGrowsByTheFactor) {
  const LossScaleRule rule{.growth_interval = 1, .automatic = AutomaticScale{}};
  LossScale state{.scale = 4};
  state.update(rule, kClean);
  EXPECT_EQ(state.scale, 8);
}

TEST(LossScale, TheAutomaticRuleBeginsToCountAnewWhereItGivesWay) {
  const LossScaleRule rule{.growth_interval = 3, .automatic = AutomaticScale{.headroom = 8}};
  StepEvidence large{.histogram = GradientHistogram{}, .grad_norm = 1000};
  large.histogram->counts[127] = 1;
  LossScale state{.scale = 64, .growth_tracker = 1};
  state.update(rule, large);
  EXPECT_EQ(state.scale, 8) << "65504 / (8 * 1000)";
  EXPECT_EQ(state.growth_tracker, 0);
  state.update(rule, large);
  EXPECT_EQ(state.scale, 8);
  EXPECT_EQ(state.growth_tracker, 1);
}

}  // namespace
}  // namespace plimsoll::amp
