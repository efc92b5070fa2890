#include "plimsoll/app/line/plan_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace plimsoll::app {
namespace {

// Products whose costs add up, which those of real models do nearly.
struct Additive {
  std::vector<PlanProduct> products;
  double floor = 0;  // with all of them wide
  double error = 0;

  PlanDivergence operator()(const std::vector<bool>& wide) const {
    double sum = floor;
    for (size_t i = 0; i < products.size(); ++i) sum += wide[i] ? 0 : products[i].divergence;
    return {.mean = sum, .standard_error = error, .samples = 1000};
  }
  Plan plan(double most, int64_t measurements = 64) const {
    return search_plan({.products = products, .most = most, .measure = *this, .most_measurements = measurements});
  }
};

size_t count_wide(const Plan& plan) { return static_cast<size_t>(std::ranges::count(plan.wide, true)); }

Additive with_outliers(size_t count, size_t outliers, double large) {
  Additive model;
  for (size_t i = 0; i < count; ++i) {
    model.products.push_back({.name = std::to_string(i), .weights = 100, .divergence = 1e-5});
  }
  for (size_t i = 0; i < outliers; ++i) model.products[(7 * i + 3) % count].divergence = large;
  return model;
}

TEST(PlanSearch, NothingStaysWideWhereAllCodesAreWithinTheBound) {
  const Plan plan = with_outliers(24, 0, 0).plan(0.01);
  EXPECT_TRUE(plan.is_within);
  EXPECT_EQ(count_wide(plan), 0u);
  EXPECT_EQ(plan.measurements, 1);
}

TEST(PlanSearch, TheOutliersAloneStayWide) {
  const Additive model = with_outliers(24, 3, 0.2);
  const Plan plan = model.plan(0.01);
  ASSERT_TRUE(plan.is_within);
  for (size_t i = 0; i < model.products.size(); ++i) EXPECT_EQ(plan.wide[i], model.products[i].divergence > 0.1) << i;
  EXPECT_DOUBLE_EQ(plan.divergence.mean, model(plan.wide).mean);
}

TEST(PlanSearch, ProductsThatAreNotFiniteStayWide) {
  Additive model = with_outliers(9, 0, 0);
  model.products[4].divergence = std::numeric_limits<double>::quiet_NaN();
  const Plan plan = model.plan(0.01);
  ASSERT_TRUE(plan.is_within);
  EXPECT_TRUE(plan.wide[4]);
  EXPECT_EQ(count_wide(plan), 1u);
}

TEST(PlanSearch, ModelsBeyondTheBoundWithoutCodesHaveNoPlan) {
  Additive model = with_outliers(8, 1, 0.5);
  model.floor = 0.02;
  const Plan plan = model.plan(0.01);
  EXPECT_FALSE(plan.is_within);
  EXPECT_EQ(count_wide(plan), 8u);
}

TEST(PlanSearch, TheErrorOfTheMeasurementCountsAgainstThePlan) {
  Additive model = with_outliers(8, 0, 0);
  model.products[2].divergence = 0.009;
  EXPECT_EQ(count_wide(model.plan(0.01)), 0u);
  model.error = 0.001;  // twice that is more than is left
  const Plan plan = model.plan(0.01);
  EXPECT_TRUE(plan.wide[2]);
  EXPECT_LE(plan.divergence.bound(), 0.01);
}

TEST(PlanSearch, FewSamplesTellLessThanMany) {
  const PlanDivergence three{.mean = 1, .standard_error = 1, .samples = 3},
      many{.mean = 1, .standard_error = 1, .samples = 1000};
  EXPECT_DOUBLE_EQ(three.bound(), 1 + 4.303);
  EXPECT_NEAR(many.bound(), 1 + 1.96, 0.1);
}

TEST(PlanSearch, LargeWeightsAreWorthMoreThanSmallOnes) {
  Additive model;
  model.products = {{.name = "small", .weights = 10, .divergence = 0.006},
                    {.name = "large", .weights = 1000, .divergence = 0.007}};
  const Plan plan = model.plan(0.01);
  EXPECT_EQ(plan.wide, (std::vector<bool>{true, false}));
}

TEST(PlanSearch, WhatNeedNotBeWideGoesBackToCodes) {
  // By cost a weight: "tiny" first, then "small", then "large", with which alone the rest is within.
  Additive model;
  model.products = {{.name = "tiny", .weights = 1, .divergence = 0.001},
                    {.name = "small", .weights = 10, .divergence = 0.002},
                    {.name = "large", .weights = 1000, .divergence = 0.05}};
  EXPECT_EQ(model.plan(0.01).wide, (std::vector<bool>{false, false, true}));
  // Bisection alone: nothing without codes, all, the first one, the first two.
  EXPECT_EQ(model.plan(0.01, /*measurements=*/4).wide, (std::vector<bool>{true, true, true}));
}

TEST(PlanSearch, PlansOfRandomModelsAreWithinTheBoundAndNoProductOfThemCanGoBack) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-8, -1);
  for (int trial = 0; trial < 50; ++trial) {
    Additive model;
    for (int i = 0; i < 40; ++i) {
      model.products.push_back({.name = "", .weights = 100, .divergence = std::pow(10, exponent(random))});
    }
    const Plan plan = model.plan(0.01, /*measurements=*/1000);
    ASSERT_TRUE(plan.is_within);
    EXPECT_LE(model(plan.wide).mean, 0.01);
    for (size_t i = 0; i < plan.wide.size(); ++i) {
      if (!plan.wide[i]) continue;
      std::vector<bool> fewer = plan.wide;
      fewer[i] = false;
      EXPECT_GT(model(fewer).mean, 0.01) << trial << " " << i;
    }
  }
}

}  // namespace
}  // namespace plimsoll::app
