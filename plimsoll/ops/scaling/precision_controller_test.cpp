// The controller on real layers: what it measures, decides, and leaves as it was.
#include "plimsoll/ops/scaling/precision_controller.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "plimsoll/ops/fused/norm_linear.h"
#include "plimsoll/ops/fused/norm_mlp.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/scaling/operand_readings.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/testing.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;
using testing::expect_equal;
using testing::leaf;
using testing::sample;

std::shared_ptr<PrecisionController> eager(const std::string& ladder = "e4m3>bf16") {
  return std::make_shared<PrecisionController>(recipe::automatic_from_text(
      R"({"name": "auto", "ladder": ")" + ladder +
      R"(", "every": 1, "votes": 2, "ballots": 2, "quiet": 3, "window": 4, "mean_decay": 0})"));
}

// A layer that trains under a controller.
struct Watched {
  std::shared_ptr<PrecisionController> controller = eager();
  std::shared_ptr<LinearState> state = std::make_shared<LinearState>("layer");
  at::Tensor weight = leaf(sample({96, 128}, 0.05));
  int64_t step = 0;
  std::shared_ptr<ScalingStep> scales = nullptr;
  std::shared_ptr<const AmaxReduction> reduction = nullptr;

  LinearScaling scaling() {
    SharedRecipe recipe = recipe_for(*controller, state);
    scales = std::make_shared<ScalingStep>(recipe);
    return {.recipe = recipe, .state = state, .step = scales, .precision = controller};
  }

  std::vector<PrecisionChange> train(const at::Tensor& x, const at::Tensor& grad) {
    const at::Tensor output = linear(leaf(x), weight, {}, scaling());
    scales->end_forward();
    torch::autograd::backward({output}, {grad.to(output.scalar_type())});
    return controller->end_step({.step = step++}, reduction.get());
  }

  int64_t rung(GemmKind gemm) const {
    return controller->layers().front().products[static_cast<size_t>(gemm)].state.rung;
  }
};

at::Tensor with_outlier(at::Tensor x) {
  x.select(1, 7).fill_(0x1p20);
  return x;
}

const at::Tensor& ordinary() {
  static const at::Tensor x = (at::manual_seed(1), sample({64, 128}));
  return x;
}
const at::Tensor& gradient() {
  static const at::Tensor x = (at::manual_seed(2), sample({64, 96}));
  return x;
}

TEST(PrecisionController, OrdinaryOperandsStayNarrow) {
  Watched layer;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(layer.train(ordinary(), gradient()).empty());
  for (const GemmKind gemm : recipe::kGemmKinds) EXPECT_EQ(layer.rung(gemm), 0);
  const auto& [state, last, multiply_adds] = layer.controller->layers().front().products[0];
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

// The rungs of the one layer of a controller of three.
std::shared_ptr<PrecisionController> at_rungs(const recipe::ProductRungs& rungs) {
  auto controller = eager("e2m1>e4m3>bf16");
  LayerPrecision layer{.layer = "layer"};
  for (const GemmKind gemm : recipe::kGemmKinds) layer.products[static_cast<size_t>(gemm)].state.rung = rungs.of(gemm);
  controller->restore(0, {layer}, {0, 0, 0});
  return controller;
}

struct Products {
  at::Tensor output, grad_input, grad_weight;
};

Products products_under(const SharedRecipe& recipe, const std::shared_ptr<PrecisionController>& controller) {
  const auto state = std::make_shared<LinearState>("layer");
  at::manual_seed(4);
  const at::Tensor x = leaf(ordinary()), weight = leaf(sample({96, 128}, 0.05));
  const LinearScaling scaling = {.recipe = recipe == nullptr ? recipe_for(*controller, state) : recipe,
                                 .state = state,
                                 .precision = controller,
                                 .seed = 9};
  const at::Tensor output = linear(x, weight, {}, scaling);
  torch::autograd::backward({output}, {gradient().to(output.scalar_type())});
  return {output.detach(), x.grad(), weight.grad()};
}

TEST(PrecisionController, EachProductHasTheBitsOfTheRecipeOfItsRung) {
  const recipe::Automatic ladder = recipe::automatic_from_text("auto:e2m1>e4m3>bf16");
  std::vector<Products> alone;
  for (const int64_t rung : {0, 1, 2}) {
    alone.push_back(products_under(std::make_shared<const recipe::Recipe>(ladder.at({rung, rung, rung})), nullptr));
  }
  for (int64_t code = 0; code < 27; ++code) {
    const recipe::ProductRungs rungs = {code % 3, code / 3 % 3, code / 9};
    const Products mixed = products_under(nullptr, at_rungs(rungs));
    const std::string name = "rungs " + std::to_string(code);
    expect_equal(mixed.output, alone[static_cast<size_t>(rungs.output)].output, name);
    expect_equal(mixed.grad_input, alone[static_cast<size_t>(rungs.grad_input)].grad_input, name);
    expect_equal(mixed.grad_weight, alone[static_cast<size_t>(rungs.grad_weight)].grad_weight, name);
  }
}

// A column beside which four bits lose its block's other columns, and eight bits nothing.
at::Tensor with_small_outlier(at::Tensor x) {
  x.select(1, 7).fill_(0x1p10);
  return x;
}

TEST(PrecisionController, AProductGoesUpNoHigherThanItMust) {
  Watched layer;
  layer.controller = eager("e2m1>e4m3>bf16");
  EXPECT_TRUE(layer.train(with_small_outlier(ordinary().clone()), gradient()).empty());
  const std::vector<PrecisionChange> changes = layer.train(with_small_outlier(ordinary().clone()), gradient());
  ASSERT_EQ(changes.size(), 1U);  // grad_weight has blocks along the tokens: the column keeps to itself
  EXPECT_TRUE(describe(changes[0]).starts_with("layer output: e2m1 -> e4m3 after step 2, error of input "));
  // A class has two columns, of which one is lost in 15 of 64.
  EXPECT_GT(changes[0].decision.error, std::sqrt(15.0 / 64 / 2));
  EXPECT_LT(changes[0].decision.error, std::sqrt(15.0 / 64 / 2) + recipe::rounding_error(format::Format::kE2m1));
  for (int i = 0; i < 12; ++i) {  // its error in four bits, which is tried in each step, keeps it where it is
    EXPECT_TRUE(layer.train(with_small_outlier(ordinary().clone()), gradient()).empty());
  }
  EXPECT_FLOAT_EQ(layer.state->input.scale.item<float>(), 0x1p10f / 448);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(layer.train(ordinary(), gradient()).empty());
  const std::vector<PrecisionChange> quiet = layer.train(ordinary(), gradient());
  ASSERT_EQ(quiet.size(), 1U);
  EXPECT_EQ(quiet[0].to, "e2m1");
}

TEST(PrecisionController, AnOutlierThatNoCodesHoldGoesUpTheWholeLadder) {
  Watched layer;
  layer.controller = eager("e2m1>e4m3>bf16");
  for (int i = 0; i < 4; ++i) layer.train(with_outlier(ordinary().clone()), gradient());
  EXPECT_EQ(layer.rung(GemmKind::kOutput), 2);
  EXPECT_EQ(layer.rung(GemmKind::kGradInput), 0);
  EXPECT_EQ(layer.rung(GemmKind::kGradWeight), 2);
  layer.train(with_outlier(ordinary().clone()), gradient());
  EXPECT_EQ(layer.controller->step_multiply_adds(), (std::vector<double>{64.0 * 128 * 96, 0, 2 * 64.0 * 128 * 96}));
}

TEST(PrecisionController, RotatedCodesLeaveTheDelayedScaleOfAnotherProductAlone) {
  const auto amax_of_history = [](const recipe::ProductRungs& rungs) {
    Watched layer;
    layer.controller = at_rungs(rungs);
    layer.train(ordinary(), gradient());
    return layer.state->grad_output.amax_history.max().item<float>();
  };
  const float amax = gradient().to(at::kBFloat16).abs().max().item<float>();
  EXPECT_EQ(amax_of_history({.grad_input = 1}), amax);  // grad_weight reads the gradient rotated
  EXPECT_EQ(amax_of_history({.output = 1, .grad_input = 1, .grad_weight = 1}), amax);
}

TEST(OperandReadings, AProductWhoseCodesAreMadeInBackwardHasTheReadingOfTheOther) {
  const recipe::Automatic ladder = recipe::automatic_from_text("auto:mxfp8>bf16");
  const std::vector<OperandCost> costs = {{.role = Role::kInput,
                                           .operand = ladder.stored_operand(0, Role::kInput, GemmKind::kOutput),
                                           .amax = find_amax(ordinary()),
                                           .statistic = at::tensor({0.5f, 0.25f, 0.0f, 0.0f, 0.9f})}};
  const LayerReadings readings = read_costs(ladder, {&costs}).front();
  const recipe::StepMeasurement measured = readings.measurement(GemmKind::kGradWeight, 0);
  EXPECT_TRUE(measured.own.is_measured);
  EXPECT_EQ(measured.own.b.role, Role::kInput);
  EXPECT_EQ(measured.own.b.error, 0.5);
  EXPECT_FALSE(measured.below.is_measured);
  EXPECT_FALSE(readings.measurement(GemmKind::kGradInput, 0).own.is_measured);
  EXPECT_EQ(readings.measurement(GemmKind::kGradWeight, 1).below.b.error, 0.5);
}

// {outputs, gradients} of two steps of a fused layer whose operands are measured, or not.
std::vector<at::Tensor> fused_steps(bool measures, kernels::Activation activation, const std::string& ladder) {
  at::manual_seed(3);
  const at::Tensor x = sample({33, 128}), norm_weight = sample({128}),
                   up = sample({kernels::is_gated(activation) ? 160 : 80, 128}, 0.1), down = sample({128, 80}, 0.1),
                   grad = sample({33, 128});
  // Every millionth step, and the first `ballots`, which has passed.
  auto controller = std::make_shared<PrecisionController>(
      recipe::automatic_from_text(R"({"name": "auto", "ladder": ")" + ladder + R"(", "ballots": 2, "every": )" +
                                  (measures ? "1" : "1000000") + "}"));
  controller->restore(5, {}, std::vector<double>(controller->recipe().ladder.size()));
  EXPECT_EQ(controller->measures(), measures);
  std::vector<std::shared_ptr<LinearState>> states = {std::make_shared<LinearState>("fc1"),
                                                      std::make_shared<LinearState>("fc2")};
  std::vector<at::Tensor> result;
  for (int64_t step = 5; step < 7; ++step) {
    const SharedRecipe recipe = recipe_for(*controller, states[0]);
    const auto scales = std::make_shared<ScalingStep>(recipe);
    const auto scaling = [&](size_t i) -> LinearScaling {
      return {
          .recipe = recipe_for(*controller, states[i]), .state = states[i], .step = scales, .precision = controller};
    };
    const std::vector<at::Tensor> leaves = {leaf(x), leaf(norm_weight), leaf(up), leaf(down)};
    const NormOutput output =
        norm_mlp({.x = leaves[0], .weight = leaves[1]}, {.kind = kernels::NormKind::kRmsNorm},
                 {.fc1_weight = leaves[2], .fc2_weight = leaves[3]}, activation, {scaling(0), scaling(1)});
    scales->end_forward();
    torch::autograd::backward({output.output}, {grad.to(output.output.scalar_type())});
    controller->end_step({.step = step}, nullptr);
    result.push_back(output.output.detach());
    for (const at::Tensor& parameter : leaves) result.push_back(parameter.grad());
  }
  return result;
}

TEST(PrecisionController, MeasuringChangesNoBit) {
  for (const std::string ladder : {"e4m3>bf16", "fp8-current>fp32", "mxfp8>bf16", "e2m1>bf16", "mxfp4>fp8-row>fp32"}) {
    for (const auto activation : {kernels::Activation::kGelu, kernels::Activation::kSwiglu}) {
      const std::vector<at::Tensor> with = fused_steps(true, activation, ladder);
      const std::vector<at::Tensor> without = fused_steps(false, activation, ladder);
      for (size_t i = 0; i < with.size(); ++i) expect_equal(with[i], without[i], ladder + " " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace plimsoll::ops
