// Products of one layer on the rungs of a controller's ladder: their bits, and how far up each goes.
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "plimsoll/ops/fused/norm_mlp.h"
#include "plimsoll/ops/scaling/operand_readings.h"
#include "plimsoll/ops/scaling/watched_layer_testing.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;
using testing::eager;
using testing::expect_equal;
using testing::gradient;
using testing::leaf;
using testing::ordinary;
using testing::sample;
using testing::Watched;
using testing::with_outlier;

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
  const SharedRecipe chosen = recipe == nullptr ? recipe_for(*controller, state) : recipe;
  const auto step = std::make_shared<ScalingStep>(chosen);
  const at::Tensor output =
      linear(x, weight, {}, {.recipe = chosen, .state = state, .step = step, .precision = controller, .seed = 9});
  step->end_forward();
  torch::autograd::backward({output}, {gradient().to(output.scalar_type())});
  return {output.detach(), x.grad(), weight.grad()};
}

TEST(PrecisionLadder, EachProductHasTheBitsOfTheRecipeOfItsRung) {
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

TEST(PrecisionLadder, AProductGoesUpNoHigherThanItMust) {
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

TEST(PrecisionLadder, AnOutlierThatNoCodesHoldGoesUpTheWholeLadder) {
  Watched layer;
  layer.controller = eager("e2m1>e4m3>bf16");
  for (int i = 0; i < 4; ++i) layer.train(with_outlier(ordinary().clone()), gradient());
  EXPECT_EQ(layer.rung(GemmKind::kOutput), 2);
  EXPECT_EQ(layer.rung(GemmKind::kGradInput), 0);
  EXPECT_EQ(layer.rung(GemmKind::kGradWeight), 2);
  layer.train(with_outlier(ordinary().clone()), gradient());
  EXPECT_EQ(layer.controller->step_multiply_adds(), (std::vector<double>{64.0 * 128 * 96, 0, 2 * 64.0 * 128 * 96}));
}

TEST(PrecisionLadder, RotatedCodesLeaveTheDelayedScaleOfAnotherProductAlone) {
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

TEST(PrecisionLadder, MeasuringChangesNoBit) {
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
