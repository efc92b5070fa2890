#include "plimsoll/recipe/automatic_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace plimsoll::recipe {
namespace {

// Small numbers, so that a test's sequence shows every limit.
Automatic small_recipe() {
  Automatic recipe = automatic_from_text("auto");
  recipe.limits = {.every = 1, .votes = 2, .ballots = 4, .quiet = 5, .window = 20};
  return recipe;
}

// Errors as shares of the bounds.
ProductMeasurement of_shares(const Automatic& recipe, double input, double weight = 0.5, int64_t rung = 0) {
  return {.a = {.role = Role::kInput, .error = input * recipe.bound(rung, Role::kInput)},
          .b = {.role = Role::kWeight, .error = weight * recipe.bound(rung, Role::kWeight)}};
}

// The steps in which a product changes its rung, as "step:from>to reason".
struct Sequence {
  Automatic recipe = small_recipe();
  int64_t steps = 0;
  ProductState state = {};
  int64_t step = 0;
  std::vector<std::string> changes = {};

  // Measured in the narrower codes of a ladder of two rungs: the product's own, or those below it.
  void take(const ProductMeasurement& measured) {
    state.rung == 0 ? take(StepMeasurement{.own = measured}) : take(StepMeasurement{.below = measured});
  }
  void take(const StepMeasurement& measured) {
    if (const auto decision = decide(recipe, {step, steps}, measured, state)) {
      changes.push_back(std::to_string(step) + ":" + std::to_string(decision->from) + ">" +
                        std::to_string(decision->to) + " " + std::string(name(decision->reason)));
    }
    ++step;
  }
  void take_shares(const std::vector<double>& shares) {
    for (const double share : shares) take(of_shares(recipe, share));
  }
};
using Changes = std::vector<std::string>;

TEST(AutomaticRule, AQuietProductStaysNarrow) {
  Sequence run;
  run.take_shares(std::vector<double>(100, 0.99));
  EXPECT_EQ(run.changes, Changes());
  EXPECT_EQ(run.state.rung, 0);
}

TEST(AutomaticRule, EnoughVotesOfTheLastBallotsPromote) {
  Sequence run;
  run.take_shares({0.5, 1.1, 0.5, 0.5, 1.1});
  EXPECT_EQ(run.changes, Changes({"4:0>1 error"}));
}

TEST(AutomaticRule, VotesTooFarApartDoNotPromote) {
  Sequence run;
  run.take_shares({1.1, 0.5, 0.5, 0.5, 1.1, 0.5, 0.5, 0.5, 1.1});
  EXPECT_EQ(run.changes, Changes());
}

TEST(AutomaticRule, EitherOperandVotes) {
  Sequence run;
  run.take(of_shares(run.recipe, 0.5, 1.1));
  run.take(of_shares(run.recipe, 1.1, 0.5));
  EXPECT_EQ(run.changes, Changes({"1:0>1 error"}));
}

TEST(AutomaticRule, WhatIsNotFinitePromotesAtOnce) {
  Sequence run;
  ProductMeasurement measured = of_shares(run.recipe, 0.5);
  measured.b.finite = false;
  measured.is_measured = false;
  run.take(measured);
  EXPECT_EQ(run.changes, Changes({"0:0>1 not finite"}));
  run.take(measured);  // there is no wider rung
  EXPECT_EQ(run.changes.size(), 1U);
}

TEST(AutomaticRule, AStepWithoutAMeasurementChangesNothingElse) {
  Sequence run;
  ProductMeasurement measured = of_shares(run.recipe, 9);
  measured.is_measured = false;
  for (int i = 0; i < 9; ++i) run.take(measured);
  EXPECT_EQ(run.changes, Changes());
  EXPECT_EQ(run.state, ProductState());
}

TEST(AutomaticRule, AGradientBelowSqrt3OfItsErrorPromotes) {
  Sequence run;
  const auto gradient = [](double norm_error) {
    return ProductMeasurement{.a = {.role = Role::kGradOutput, .error = 0, .norm_error = norm_error},
                              .b = {.role = Role::kWeight}};
  };
  const double edge = 1 / std::sqrt(3.0);
  for (int i = 0; i < 8; ++i) run.take(gradient(std::nextafter(edge, 0.0)));
  EXPECT_EQ(run.changes, Changes());
  run.take(gradient(edge * 1.01));
  run.take(gradient(edge * 1.01));
  EXPECT_EQ(run.changes, Changes({"9:0>1 gradient"}));
}

TEST(AutomaticRule, RowsThatBecomeZeroBesideOutliersPromote) {
  Sequence run;
  ProductMeasurement measured = of_shares(run.recipe, 0.5);
  measured.b.flushed = 0.25;
  for (int i = 0; i < 8; ++i) run.take(measured);
  EXPECT_EQ(run.changes, Changes());
  measured.b.flushed = 0.26;
  run.take(measured);
  run.take(measured);
  EXPECT_EQ(run.changes, Changes({"9:0>1 flushed"}));
}

TEST(AutomaticRule, AGradientMayLoseItsSmallElements) {
  Sequence run;
  const ProductMeasurement measured{.a = {.role = Role::kGradOutput, .flushed = 0.9}, .b = {.role = Role::kWeight}};
  for (int i = 0; i < 8; ++i) run.take(measured);
  EXPECT_EQ(run.changes, Changes());
}

TEST(AutomaticRule, TheNormErrorOfAnInputIsNoVote) {
  Sequence run;
  ProductMeasurement measured = of_shares(run.recipe, 0.5);
  measured.a.norm_error = 1;
  for (int i = 0; i < 8; ++i) run.take(measured);
  EXPECT_EQ(run.changes, Changes());
}

TEST(AutomaticRule, AnErrorThatIsNaNIsAVote) {
  Sequence run;
  run.take_shares({std::numeric_limits<double>::quiet_NaN(), 1.1});
  EXPECT_EQ(run.changes.size(), 1U);
}

TEST(AutomaticRule, QuietStepsDemote) {
  Sequence run;
  run.take_shares({1.1, 1.1, 0.5, 0.5, 0.5, 0.5, 0.5});
  EXPECT_EQ(run.changes, Changes({"1:0>1 error", "6:1>0 quiet"}));
}

TEST(AutomaticRule, ADemotionTellsTheMeanLoadAndItsLimit) {
  const Automatic recipe = small_recipe();
  ProductState state{.rung = 1};
  std::optional<Decision> decision;
  for (int64_t step = 0; !decision; ++step) {
    ASSERT_LT(step, 9);
    decision = decide(recipe, {.step = step}, {.below = of_shares(recipe, 0.5, 0.25)}, state);
  }
  EXPECT_EQ(decision->role, Role::kInput);
  EXPECT_DOUBLE_EQ(decision->error, 0.5);
  EXPECT_EQ(decision->bound, recipe.limits.demote_share);
}

TEST(AutomaticRule, AVoteOnTheWideRungPutsTheDemotionOff) {
  Sequence run;
  run.take_shares({1.1, 1.1, 0.1, 0.1, 1.1, 0.1, 0.1, 0.1, 0.1});
  EXPECT_EQ(run.changes, Changes({"1:0>1 error"}));
  run.take_shares({0.1});  // the fifth step after the vote
  EXPECT_EQ(run.changes, Changes({"1:0>1 error", "9:1>0 quiet"}));
}

TEST(AutomaticRule, AMeanErrorNearTheBoundForbidsADemotion) {
  Sequence run;
  run.take_shares({1.1, 1.1});
  run.take_shares(std::vector<double>(50, 0.76));  // demote_share is 0.75
  EXPECT_EQ(run.changes, Changes({"1:0>1 error"}));
}

TEST(AutomaticRule, NothingIsDemotedInTheLastShareOfTheSchedule) {
  for (const int64_t steps : {6, 7, 8}) {  // 90 % of them: 5.4, 6.3, 7.2
    Sequence run{.steps = steps};
    run.take_shares({1.1, 1.1, 0.5, 0.5, 0.5, 0.5, 0.5});
    EXPECT_EQ(run.changes.size(), steps == 6 ? 1U : 2U) << steps;
  }
}

TEST(AutomaticRule, NothingIsDemotedTwiceWithinAWindow) {
  Sequence run;
  run.take_shares({1.1, 1.1, 0.5, 0.5, 0.5, 0.5, 0.5});  // demoted at 6
  run.take_shares({1.1, 1.1});                           // promoted at 8
  run.take_shares(std::vector<double>(30, 0.5));         // quiet from 13 on, but the window ends at 26
  EXPECT_EQ(run.changes, Changes({"1:0>1 error", "6:1>0 quiet", "8:0>1 error", "26:1>0 quiet"}));
}

TEST(AutomaticRule, APromotionIsNeverPutOff) {
  Sequence run{.steps = 10};
  run.take_shares({1.1, 1.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});  // demoted at 6
  run.take_shares({1.1, 1.1});                                // in the last share, and inside the window
  EXPECT_EQ(run.changes, Changes({"1:0>1 error", "6:1>0 quiet", "9:0>1 error"}));
}

TEST(AutomaticRule, AStateThatWasSavedGoesOnAsIfItHadNotBeen) {
  std::vector<double> shares;
  for (int i = 0; i < 200; ++i) shares.push_back(i % 50 < 8 ? 1.2 : 0.3);
  Sequence whole;
  whole.take_shares(shares);
  for (const size_t cut : {1U, 7U, 60U, 151U}) {
    Sequence first;
    first.take_shares({shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(cut)});
    Sequence second{.state = first.state, .step = first.step, .changes = first.changes};
    second.take_shares({shares.begin() + static_cast<std::ptrdiff_t>(cut), shares.end()});
    EXPECT_EQ(second.changes, whole.changes);
    EXPECT_EQ(second.state, whole.state);
  }
  EXPECT_GT(whole.changes.size(), 2U);
}

TEST(AutomaticRule, TheMeanIsExponential) {
  Sequence run;
  run.take_shares({0.5, 1.0});
  const double bound = run.recipe.bound(0, Role::kInput);
  EXPECT_DOUBLE_EQ(run.state.own.mean_load, 0.9 * 0.5 + 0.1 * 1.0);
  const double first = bound * std::sqrt(0.5), second = bound * std::sqrt(1.25);
  EXPECT_NEAR(run.state.own.mean_error, 0.9 * first + 0.1 * second, 4 * std::numeric_limits<double>::epsilon() * bound);
}

TEST(AutomaticRule, MeasuredStepsAreTheFirstAndEachEveryth) {
  const AutomaticLimits limits{.every = 8, .ballots = 3};
  std::vector<int64_t> measured;
  for (int64_t step = 0; step < 20; ++step) {
    if (measures(limits, step)) measured.push_back(step);
  }
  EXPECT_EQ(measured, std::vector<int64_t>({0, 1, 2, 8, 16}));
}

TEST(AutomaticRule, AVoteOnANarrowRungAsksForTheNextStep) {
  Sequence run;
  run.take_shares({0.5});
  EXPECT_FALSE(asks_for_next(run.recipe, run.state));
  run.take_shares({1.1});
  EXPECT_TRUE(asks_for_next(run.recipe, run.state));
  run.take_shares({1.1, 1.1});
  EXPECT_EQ(run.state.rung, 1);
  EXPECT_FALSE(asks_for_next(run.recipe, run.state));
}

// A ladder of three rungs, with shares of the bounds of the product's own codes and of those below.
struct ThreeRungs : Sequence {
  ThreeRungs() {
    const AutomaticLimits limits = recipe.limits;
    recipe = automatic_from_text("auto:e2m1>e4m3>bf16");
    recipe.limits = limits;
  }
  void take_both(double own, double below) {
    StepMeasurement measured;
    if (recipe.has_codes(state.rung)) measured.own = of_shares(recipe, own, 0.5, state.rung);
    if (state.rung > 0) measured.below = of_shares(recipe, below, 0.5, state.rung - 1);
    take(measured);
  }
};

TEST(AutomaticRule, VotesMoveAProductUpByOneRungAtATime) {
  ThreeRungs run;
  for (int i = 0; i < 6; ++i) run.take_both(1.1, 1.1);
  EXPECT_EQ(run.changes, Changes({"1:0>1 error", "3:1>2 error"}));
}

TEST(AutomaticRule, AProductStaysInTheMiddleWhereItsOwnCodesAreQuietAndThoseBelowAreNot) {
  ThreeRungs run;
  for (int i = 0; i < 60; ++i) run.take_both(run.state.rung == 0 ? 1.1 : 0.5, 1.1);
  EXPECT_EQ(run.changes, Changes({"1:0>1 error"}));
  EXPECT_EQ(run.state.own.votes, 0u);
  EXPECT_EQ(run.state.below.votes, 0xfu);
}

TEST(AutomaticRule, AProductComesDownByOneRungWithinEachWindow) {
  ThreeRungs run;
  for (int i = 0; i < 4; ++i) run.take_both(1.1, 1.1);
  for (int i = 0; i < 40; ++i) run.take_both(0.5, 0.5);
  EXPECT_EQ(run.changes, Changes({"1:0>1 error", "3:1>2 error", "8:2>1 quiet", "28:1>0 quiet"}));
}

TEST(AutomaticRule, WhatIsNotFiniteGoesToTheLastRungAtOnce) {
  ThreeRungs run;
  StepMeasurement measured{.own = of_shares(run.recipe, 0.5)};
  measured.own.a.finite = false;
  run.take(measured);
  EXPECT_EQ(run.changes, Changes({"0:0>2 not finite"}));
}

TEST(AutomaticRule, FourBitsMayLoseThreeTimesAsManyElements) {
  ThreeRungs run;
  StepMeasurement measured{.own = of_shares(run.recipe, 0.5)};
  measured.own.b.flushed = 0.75;
  for (int i = 0; i < 8; ++i) run.take(measured);
  EXPECT_EQ(run.changes, Changes());
  measured.own.b.flushed = 0.76;
  for (int i = 0; i < 2; ++i) run.take(measured);
  EXPECT_EQ(run.changes, Changes({"9:0>1 flushed"}));
}

TEST(AutomaticRule, TheRecordThatIsShownIsOfTheProductsCodesOrOfThoseThatItMightHave) {
  ThreeRungs run;
  for (const int64_t rung : {0, 1, 2}) {
    run.state.rung = rung;
    EXPECT_EQ(&shown(run.state, run.recipe.last_rung()), rung == 2 ? &run.state.below : &run.state.own);
  }
}

}  // namespace
}  // namespace plimsoll::recipe
