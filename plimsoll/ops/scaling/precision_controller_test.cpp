// The controller on a real layer: what it measures, decides, and leaves as it was.
#include "plimsoll/ops/scaling/precision_controller.h"

#include <cmath>

#include "plimsoll/ops/scaling/watched_layer_testing.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;
using testing::gradient;
using testing::leaf;
using testing::ordinary;
using testing::Watched;
using testing::with_outlier;

TEST(PrecisionController, OrdinaryOperandsStayNarrow) {
  Watched layer;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(layer.train(ordinary(), gradient()).empty());
  for (const GemmKind gemm : recipe::kGemmKinds) EXPECT_EQ(layer.rung(gemm), 0);
  const auto [state, last, multiply_adds] = layer.controller->layers().front().products[0];
  EXPECT_EQ(state.own.measured, 6);
  // The input's and the weight's: each near the rounding error of numbers that are spread evenly, both together.
  const double both = std::sqrt(2.0) * recipe::rounding_error(format::Format::kE4m3);
  EXPECT_GT(state.own.mean_error, both / 2);
  EXPECT_LT(state.own.mean_error, both * 2);
  EXPECT_EQ(multiply_adds, 64.0 * 128 * 96);
  EXPECT_EQ(layer.controller->step_multiply_adds(), (std::vector<double>{3 * 64.0 * 128 * 96, 0}));
}

TEST(PrecisionController, AnOutlierPromotesTheProductsThatReadIt) {
  Watched layer;
  EXPECT_TRUE(layer.train(with_outlier(ordinary().clone()), gradient()).empty());
  const std::vector<PrecisionChange> changes = layer.train(with_outlier(ordinary().clone()), gradient());
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].gemm, GemmKind::kOutput);
  EXPECT_EQ(changes[1].gemm, GemmKind::kGradWeight);
  for (const PrecisionChange& change : changes) {
    EXPECT_EQ(change.decision.reason, recipe::Reason::kError);
    EXPECT_EQ(change.decision.role, Role::kInput);
    EXPECT_GT(change.decision.error, change.decision.bound);
  }
  EXPECT_EQ(layer.rung(GemmKind::kGradInput), 0);
  EXPECT_TRUE(layer.scaling().recipe->high_precision(GemmKind::kOutput));
  EXPECT_FALSE(layer.scaling().recipe->high_precision(GemmKind::kGradInput));
  layer.train(with_outlier(ordinary().clone()), gradient());
  EXPECT_EQ(layer.controller->step_multiply_adds(), (std::vector<double>{64.0 * 128 * 96, 2 * 64.0 * 128 * 96}));
}

TEST(PrecisionController, WhenTheOutlierIsGoneTheProductsComeDownWithAScaleOfNow) {
  Watched layer;
  for (int i = 0; i < 3; ++i) layer.train(with_outlier(ordinary().clone()), gradient());
  ASSERT_EQ(layer.rung(GemmKind::kOutput), 1);
  for (int i = 0; i < 3; ++i) layer.train(ordinary(), gradient());
  EXPECT_EQ(layer.rung(GemmKind::kOutput), 0);
  EXPECT_EQ(layer.rung(GemmKind::kGradWeight), 0);
  EXPECT_EQ(layer.state->input.scale.item<float>(), 0.0f);  // of the outlier before
  layer.train(ordinary(), gradient());
  const float amax = ordinary().abs().max().item<float>();
  EXPECT_FLOAT_EQ(layer.state->input.scale.item<float>(), amax / 448);
  EXPECT_EQ(layer.state->weight.step.item<int64_t>(), 7);  // which grad_input used all the time
}

TEST(PrecisionController, WhatIsNotFinitePromotesInOneStep) {
  Watched layer;
  at::Tensor grad = gradient().clone();
  grad[3][5] = std::numeric_limits<float>::infinity();
  const std::vector<PrecisionChange> changes = layer.train(ordinary(), grad);
  ASSERT_EQ(changes.size(), 2U);
  for (const PrecisionChange& change : changes) EXPECT_EQ(change.decision.reason, recipe::Reason::kNotFinite);
  EXPECT_EQ(layer.rung(GemmKind::kOutput), 0);
}

TEST(PrecisionController, AnAbandonedStepLeavesNoTrace) {
  Watched layer;
  const at::Tensor output = linear(leaf(with_outlier(ordinary().clone())), layer.weight, {}, layer.scaling());
  layer.controller->abandon_step(0);
  layer.train(ordinary(), gradient());
  EXPECT_EQ(layer.controller->layers().front().products[0].state.own.votes, 0U);
  EXPECT_EQ(layer.controller->multiply_adds()[0], 3 * 64.0 * 128 * 96);
}

TEST(PrecisionController, TheStepAfterAnAbandonedOneIsMeasuredWhereItsNumberSays) {
  PrecisionController whole(recipe::automatic_from_text(R"({"name": "auto", "every": 8})"));
  whole.restore(15, {}, {0, 0});
  EXPECT_FALSE(whole.measures());
  whole.abandon_step(15);
  EXPECT_TRUE(whole.measures());
  whole.abandon_step(16);
  PrecisionController resumed(recipe::automatic_from_text(R"({"name": "auto", "every": 8})"));
  resumed.restore(17, {}, {0, 0});
  EXPECT_EQ(whole.measures(), resumed.measures());
  EXPECT_FALSE(whole.measures());
}

TEST(PrecisionController, LayersOfOneNameHaveANumber) {
  PrecisionController controller(recipe::automatic_from_text("auto"));
  std::vector<std::shared_ptr<LinearState>> states;
  for (const char* name : {"fc", "fc", "", "fc", ""}) {
    states.push_back(std::make_shared<LinearState>(name));
    recipe_for(controller, states.back());
  }
  for (const auto& state : states) recipe_for(controller, state);  // which adds none
  std::vector<std::string> names;
  for (const LayerPrecision& layer : controller.layers()) names.push_back(layer.layer);
  EXPECT_EQ(names, (std::vector<std::string>{"fc", "fc#2", "layer 2", "fc#3", "layer 4"}));
}

TEST(PrecisionController, ACopyThatIsEvaluatedHasTheFormatsOfTheLayerOfItsName) {
  Watched layer;
  for (int i = 0; i < 2; ++i) layer.train(with_outlier(ordinary().clone()), gradient());
  const auto copy = std::make_shared<LinearState>("layer"), other = std::make_shared<LinearState>("other");
  EXPECT_EQ(evaluation_recipe_for(*layer.controller, copy), layer.scaling().recipe);
  EXPECT_FALSE(evaluation_recipe_for(*layer.controller, other)->high_precision(GemmKind::kOutput));
  EXPECT_EQ(layer.controller->layers().size(), 1U);
  EXPECT_EQ(layer.controller->reason_for("layer", copy->grad_output, GemmKind::kGradInput),
            "e4m3 from the first step on");
  EXPECT_TRUE(
      layer.controller->reason_for("layer", copy->grad_output, GemmKind::kOutput).starts_with("bf16 after step 2"));
}

TEST(PrecisionController, ACopyThatIsEvaluatedFirstLeavesTheModelWhatWasRestored) {
  Watched before;
  for (int i = 0; i < 2; ++i) before.train(with_outlier(ordinary().clone()), gradient());
  Watched resumed;
  resumed.controller->restore(2, before.controller->layers(), before.controller->multiply_adds());
  const auto copy = std::make_shared<LinearState>("layer");
  EXPECT_TRUE(evaluation_recipe_for(*resumed.controller, copy)->high_precision(GemmKind::kOutput));
  EXPECT_TRUE(resumed.scaling().recipe->high_precision(GemmKind::kOutput));
  EXPECT_EQ(resumed.controller->layers().size(), 1U);
}

TEST(PrecisionController, ALayerWhoseSlotGetsAnotherTensorStaysTheLayer) {
  Watched layer;
  for (int i = 0; i < 2; ++i) layer.train(with_outlier(ordinary().clone()), gradient());
  ASSERT_EQ(layer.rung(GemmKind::kOutput), 1);
  const at::Tensor before = layer.state->grad_output.scale;
  layer.state->grad_output.scale = before.clone();
  // Memory of the scale before: another layer's from here on.
  const auto other = std::make_shared<LinearState>("other");
  other->grad_output.scale = before;
  recipe_for(*layer.controller, other);
  layer.train(with_outlier(ordinary().clone()), gradient());
  const std::vector<LayerPrecision> layers = layer.controller->layers();
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].products[0].state.rung, 1);
  EXPECT_EQ(layers[0].products[0].multiply_adds, 64.0 * 128 * 96);
  EXPECT_EQ(layers[1].products[0].multiply_adds, 0);
}

TEST(PrecisionController, ALayerThatRunsLaterFindsWhatWasRestored) {
  Watched first;
  for (int i = 0; i < 2; ++i) first.train(with_outlier(ordinary().clone()), gradient());
  Watched late;
  late.state = std::make_shared<LinearState>("another");
  late.controller->restore(2, first.controller->layers(), first.controller->multiply_adds());
  for (int i = 0; i < 3; ++i) late.train(ordinary(), gradient());  // without the layer
  late.state = first.state;
  EXPECT_TRUE(late.scaling().recipe->high_precision(GemmKind::kOutput));
}

TEST(PrecisionController, ARestoredOneDecidesTheSame) {
  Watched whole, first;
  first.weight = whole.weight;
  const auto x = [](int step) { return step % 7 < 2 ? with_outlier(ordinary().clone()) : ordinary(); };
  std::vector<std::string> expected, got;
  const auto take = [](std::vector<std::string>& log, const std::vector<PrecisionChange>& changes) {
    for (const PrecisionChange& change : changes) log.push_back(describe(change));
  };
  for (int i = 0; i < 24; ++i) take(expected, whole.train(x(i), gradient()));
  for (int i = 0; i < 9; ++i) take(got, first.train(x(i), gradient()));
  Watched second;
  second.weight = whole.weight;
  second.step = first.step;
  second.state = first.state;
  second.controller->restore(first.step, first.controller->layers(), first.controller->multiply_adds());
  ASSERT_EQ(second.controller->layers().size(), 1U);  // a state that is saved at once keeps what was restored
  EXPECT_EQ(second.controller->layers()[0].products[0].state, first.controller->layers()[0].products[0].state);
  for (int i = 9; i < 24; ++i) take(got, second.train(x(i), gradient()));
  EXPECT_EQ(got, expected);
  EXPECT_GE(expected.size(), 6U);
  EXPECT_EQ(second.controller->multiply_adds(), whole.controller->multiply_adds());
}

TEST(PrecisionController, RanksDecideByTheWorstMeasurementOfAll) {
  Watched here, there;
  there.weight = here.weight;
  // A collective of two: what the other rank brings is known beforehand.
  std::vector<float> others;
  auto listens = std::make_shared<AmaxReduction>();
  listens->all_reduce_max = [&](std::span<float> numbers) { others.assign(numbers.begin(), numbers.end()); };
  there.reduction = listens;
  auto joins = std::make_shared<AmaxReduction>();
  joins->all_reduce_max = [&](std::span<float> numbers) {
    ASSERT_EQ(numbers.size(), others.size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::max(numbers[i], others[i]);
  };
  here.reduction = joins;
  for (int i = 0; i < 2; ++i) {
    there.train(with_outlier(ordinary().clone()), gradient());
    here.train(ordinary(), gradient());
  }
  for (const GemmKind gemm : recipe::kGemmKinds) EXPECT_EQ(here.rung(gemm), there.rung(gemm));
  EXPECT_EQ(here.rung(GemmKind::kOutput), 1);
}

TEST(PrecisionController, TheAuditNamesTheDecision) {
  Watched layer;
  for (int i = 0; i < 2; ++i) layer.train(with_outlier(ordinary().clone()), gradient());
  watch::Audit audit;
  {
    const watch::AuditRecording recording(&audit);
    layer.train(ordinary(), gradient());
  }
  const std::vector<watch::AuditRow> rows = audit.rows();
  ASSERT_EQ(rows.size(), 3U);
  for (const watch::AuditRow& row : rows) EXPECT_EQ(row.decided, "auto");
  EXPECT_EQ(rows[0].operands[0].format, "bf16");
  EXPECT_TRUE(rows[0].reason.starts_with("bf16 after step 2: error of input")) << rows[0].reason;
  EXPECT_EQ(rows[1].operands[0].format, "e4m3");
  EXPECT_EQ(rows[1].reason, "e4m3 from the first step on");
}

}  // namespace
}  // namespace plimsoll::ops
