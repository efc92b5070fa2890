#include "plimsoll/recipe/delayed_scaling.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace plimsoll::recipe {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kE4m3Max = 448.0f, kE5m2Max = 57344.0f;

struct State {
  explicit State(int64_t length) : history(static_cast<size_t>(length)) {}
  float scale = kNoScale;
  std::vector<float> history;
  DelayedState view() { return {scale, history}; }
};

struct Golden {
  float amax, e4m3, e4m3_margin2, e5m2, power_of_two, power_of_two_margin2;
};

// The contract's table, old value 8; each number is the shortest decimal that names one float.
constexpr Golden kGolden[] = {
    {0, 8, 8, 8, 8, 8},
    {1, 448, 112, 57344, 256, 64},
    {3, 149.33333f, 37.333332f, 19114.666f, 128, 32},
    {449, 0.9977728f, 0.2494432f, 127.71492f, 0.5f, 0.125f},
    {1000, 0.448f, 0.112f, 57.344f, 0.25f, 0.0625f},
    {1e-37f, FLT_MAX, FLT_MAX, FLT_MAX, 0x1p127f, 0x1p127f},
};

TEST(InvScale, MatchesTheGoldenTable) {
  for (const Golden& row : kGolden) {
    SCOPED_TRACE(row.amax);
    EXPECT_EQ(compute_inv_scale({row.amax, 8, kE4m3Max, 0}), row.e4m3);
    EXPECT_EQ(compute_inv_scale({row.amax, 8, kE4m3Max, 2}), row.e4m3_margin2);
    EXPECT_EQ(compute_inv_scale({row.amax, 8, kE5m2Max, 0}), row.e5m2);
    EXPECT_EQ(compute_inv_scale_power_of_two({row.amax, 8, kE4m3Max, 0}), row.power_of_two);
    EXPECT_EQ(compute_inv_scale_power_of_two({row.amax, 8, kE4m3Max, 2}), row.power_of_two_margin2);
  }
}

TEST(InvScale, NonFiniteAmaxKeepsTheOldValue) {
  for (float amax : {kInf, kNan}) {
    EXPECT_EQ(compute_inv_scale({amax, 8, kE4m3Max, 0}), 8);
    EXPECT_EQ(compute_inv_scale_power_of_two({amax, 8, kE4m3Max, 0}), 8);
  }
}

TEST(InvScale, StaysUsableAtTheEndsOfFp32) {
  for (float amax : {0x1p-149f, FLT_MIN, 1.0f, FLT_MAX}) {
    for (int margin : {-127, 0, 127}) {
      for (float inv_scale : {compute_inv_scale({amax, 1, kE4m3Max, margin}),
                              compute_inv_scale_power_of_two({amax, 1, kE4m3Max, margin})}) {
        EXPECT_GE(inv_scale, FLT_MIN);
        EXPECT_LE(inv_scale, FLT_MAX);
        EXPECT_GE(scale_of(inv_scale), FLT_MIN);
        EXPECT_TRUE(std::isfinite(inv_scale_of(scale_of(inv_scale))));
      }
    }
  }
}

TEST(InvScale, PowerOfTwoNeverScalesAboveTheLargestCode) {
  for (float amax : {448.0f, std::nextafter(448.0f, 0.0f), std::nextafter(448.0f, 500.0f), 0.875f, 0.8751f, 1e10f}) {
    const float inv_scale = compute_inv_scale_power_of_two({amax, 1, kE4m3Max, 0});
    int exponent = 0;
    EXPECT_EQ(std::frexp(inv_scale, &exponent), 0.5f);
    EXPECT_LE(double{amax} * double{inv_scale}, 448.0);
    EXPECT_GT(double{amax} * double{inv_scale} * 2, 448.0);
  }
}

TEST(AmaxHistory, RowZeroHoldsTheMaxOfTheStep) {
  State state(4);
  EXPECT_TRUE(record_amax(state.view(), 2));
  EXPECT_TRUE(record_amax(state.view(), 5));
  EXPECT_TRUE(record_amax(state.view(), 3));
  EXPECT_EQ(state.history, (std::vector<float>{5, 0, 0, 0}));
}

TEST(AmaxHistory, NonFiniteIsReportedAndNotWritten) {
  State state(2);
  record_amax(state.view(), 2);
  EXPECT_FALSE(record_amax(state.view(), kInf));
  EXPECT_FALSE(record_amax(state.view(), kNan));
  EXPECT_EQ(state.history, (std::vector<float>{2, 0}));
}

TEST(AmaxHistory, UpdateRollsRowZeroInAsTheNewest) {
  State state(3);
  const DelayedScaling recipe{.amax_history_len = 3};
  for (int step = 0; step < 4; ++step) {
    record_amax(state.view(), static_cast<float>(step + 1));
    update(recipe, Format::kE4m3, step, state.view());
  }
  EXPECT_EQ(state.history, (std::vector<float>{0, 3, 4}));
}

TEST(AmaxHistory, LengthOneKeepsNothing) {
  State state(1);
  record_amax(state.view(), 7);
  update({.amax_history_len = 1}, Format::kE4m3, 0, state.view());
  EXPECT_EQ(state.history, (std::vector<float>{0}));
  EXPECT_EQ(state.scale, 1.0f / 64.0f);
}

TEST(AmaxHistory, ResizeKeepsTheNewestRows) {
  const std::vector<float> from{9, 1, 2, 3};
  for (const std::vector<float>& expected :
       {std::vector<float>{9}, {9, 3}, {9, 2, 3}, {9, 1, 2, 3}, {9, 0, 0, 1, 2, 3}}) {
    std::vector<float> to(expected.size(), -1.0f);
    resize_history(from, to);
    EXPECT_EQ(to, expected);
  }
}

TEST(Update, MaxRemembersAnOutlierForTheWholeWindow) {
  State state(3);
  const DelayedScaling recipe{.amax_history_len = 3};
  std::vector<float> scales;
  int step = 0;
  for (float amax : {448.0f, 1.0f, 1.0f, 1.0f}) {
    record_amax(state.view(), amax);
    update(recipe, Format::kE4m3, step++, state.view());
    scales.push_back(state.scale);
  }
  EXPECT_EQ(scales, (std::vector<float>{1, 1, 1, 1.0f / 448.0f}));
}

TEST(Update, MostRecentFollowsAtOnce) {
  State state(3);
  const DelayedScaling recipe{.amax_history_len = 3, .amax_compute_algo = AmaxRule::kMostRecent};
  int step = 0;
  for (float amax : {448.0f, 896.0f, 224.0f}) {
    record_amax(state.view(), amax);
    update(recipe, Format::kE4m3, step++, state.view());
    EXPECT_EQ(state.scale, amax / 448.0f);
  }
}

TEST(Update, OneInfDoesNotFreezeTheScale) {
  State state(4);
  const DelayedScaling recipe{.amax_history_len = 4};
  int step = 0;
  for (float amax : {448.0f, kInf, 896.0f}) {
    record_amax(state.view(), amax);
    update(recipe, Format::kE4m3, step++, state.view());
    EXPECT_TRUE(std::isfinite(state.scale));
  }
  EXPECT_EQ(state.scale, 2);
}

TEST(Update, StepWithoutAmaxKeepsTheScale) {
  State state(1);
  state.scale = 0.25f;
  update({.amax_history_len = 1}, Format::kE4m3, 0, state.view());
  EXPECT_EQ(state.scale, 0.25f);
  state.scale = kNoScale;
  update({.amax_history_len = 1}, Format::kE4m3, 1, state.view());
  EXPECT_EQ(state.scale, kNoScale) << "a tensor of zeros is not a first use";
}

TEST(Update, IntervalIsHonoured) {
  State state(8);
  const DelayedScaling recipe{.interval = 3, .amax_history_len = 8};
  std::vector<float> scales;
  state.scale = 1;
  for (int step = 0; step < 6; ++step) {
    record_amax(state.view(), std::ldexp(448.0f, step + 1));
    update(recipe, Format::kE4m3, step, state.view());
    scales.push_back(state.scale);
  }
  EXPECT_EQ(scales, (std::vector<float>{1, 1, 8, 8, 8, 64}));
}

TEST(Update, CallablesReplaceTheRules) {
  State state(3);
  state.history = {4, 1, 3};
  state.scale = 0.5f;
  DelayedScaling recipe{.margin = 5, .amax_history_len = 3};
  recipe.amax_compute_algo = [](std::span<const float> history) {
    return std::accumulate(history.begin(), history.end(), 0.0f);
  };
  recipe.scaling_factor_compute_algo = [](const InvScaleInput& input) {
    EXPECT_EQ(input.amax, 8);
    EXPECT_EQ(input.old_inv_scale, 2);
    EXPECT_EQ(input.max_finite, kE5m2Max);
    EXPECT_EQ(input.margin, 5);
    return 16.0f;
  };
  update(recipe, Format::kE5m2, 0, state.view());
  EXPECT_EQ(state.scale, 1.0f / 16.0f);
  EXPECT_EQ(state.history, (std::vector<float>{0, 3, 4}));
}

TEST(Update, CallableOutOfRangeThrowsAndChangesNothing) {
  for (float bad : {0.0f, -1.0f, kInf, kNan}) {
    State state(2);
    state.history = {4, 1};
    DelayedScaling recipe{.amax_history_len = 2};
    recipe.scaling_factor_compute_algo = [bad](const InvScaleInput&) { return bad; };
    EXPECT_THROW(update(recipe, Format::kE4m3, 0, state.view()), std::invalid_argument);
    EXPECT_EQ(state.scale, kNoScale);
    EXPECT_EQ(state.history, (std::vector<float>{4, 1}));
  }
}

TEST(FirstScale, ComesFromTheOperandItself) {
  State state(2);
  const DelayedScaling recipe{.amax_history_len = 2};
  EXPECT_EQ(inv_scale_of(state.scale), 1);
  for (float silent : {0.0f, kInf, kNan}) {
    first_scale(recipe, Format::kE4m3, silent, state.view());
    EXPECT_EQ(state.scale, kNoScale);
  }
  first_scale(recipe, Format::kE4m3, 1792, state.view());
  EXPECT_EQ(state.scale, 4);
  first_scale(recipe, Format::kE4m3, 448, state.view());
  EXPECT_EQ(state.scale, 4) << "only the first amax counts";
}

}  // namespace
}  // namespace plimsoll::recipe
