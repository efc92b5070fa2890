#include "plimsoll/ops/scaling/scaling_step.h"

#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using recipe::Role;
using testing::leaf;
using testing::shared;

// A layer whose input has this amax and whose output gradient has that one.
struct OneLayer {
  SharedRecipe recipe = shared(recipe::DelayedScaling{.amax_history_len = 4});
  std::shared_ptr<LinearState> state = std::make_shared<LinearState>();
  at::Tensor weight = leaf(at::eye(4));

  at::Tensor forward(float amax, const std::shared_ptr<ScalingStep>& step) const {
    return linear(at::full({2, 4}, amax), weight, {}, {.recipe = recipe, .state = state, .step = step});
  }
  static void backward(const at::Tensor& output, float amax) {
    torch::autograd::backward({output}, {at::full_like(output, amax)});
  }
};

std::vector<float> rows(const at::Tensor& history) {
  return {history.const_data_ptr<float>(), history.const_data_ptr<float>() + history.numel()};
}

TEST(ScalingStep, AmaxesReachTheSlotsWhenTheStepEnds) {
  const OneLayer layer;
  const auto step = std::make_shared<ScalingStep>(layer.recipe);
  const at::Tensor output = layer.forward(3.0f, step);
  EXPECT_EQ(layer.state->input.scale.item<float>(), 0.0f);
  step->end_forward();
  EXPECT_FLOAT_EQ(layer.state->input.scale.item<float>(), 3.0f / 448);
  EXPECT_EQ(rows(layer.state->input.amax_history), (std::vector<float>{0, 0, 0, 3}));
  EXPECT_EQ(layer.state->input.step.item<int64_t>(), 1);
  EXPECT_EQ(layer.state->grad_output.step.item<int64_t>(), 0);
  OneLayer::backward(output, 5.0f);
  EXPECT_FLOAT_EQ(layer.state->grad_output.scale.item<float>(), 5.0f / 57344);
  EXPECT_EQ(rows(layer.state->grad_output.amax_history), (std::vector<float>{0, 0, 0, 5}));
}

TEST(ScalingStep, UsesOfOneStepFoldByMax) {
  const OneLayer layer;
  const auto step = std::make_shared<ScalingStep>(layer.recipe);
  const at::Tensor first = layer.forward(3.0f, step), second = layer.forward(7.0f, step),
                   third = layer.forward(2.0f, step);
  step->end_forward();
  EXPECT_EQ(rows(layer.state->input.amax_history), (std::vector<float>{0, 0, 0, 7}));
  OneLayer::backward(first + second + third, 5.0f);
  EXPECT_EQ(rows(layer.state->grad_output.amax_history), (std::vector<float>{0, 0, 0, 5}));
  EXPECT_EQ(layer.state->grad_output.step.item<int64_t>(), 1);
}

TEST(ScalingStep, StepsOfOneBackwardPassUpdateOnce) {
  const OneLayer layer;
  const auto output = [&](float amax) { return layer.forward(amax, std::make_shared<ScalingStep>(layer.recipe)); };
  OneLayer::backward(output(1.0f) + output(2.0f), 5.0f);
  EXPECT_EQ(layer.state->grad_output.step.item<int64_t>(), 1);
  OneLayer::backward(output(1.0f), 6.0f);
  EXPECT_EQ(rows(layer.state->grad_output.amax_history), (std::vector<float>{0, 0, 5, 6}));
}

TEST(ScalingStep, AnErrorOfTheUsersFunctionLeavesAllSlots) {
  int calls = 0, fails_at = 0;
  OneLayer layer;
  layer.recipe = shared(recipe::DelayedScaling{.amax_history_len = 4,
                                               .scaling_factor_compute_algo = [&](const recipe::InvScaleInput& input) {
                                                 if (++calls == fails_at) throw std::runtime_error("the user's");
                                                 return input.max_finite / input.amax;
                                               }});
  const auto slots = [&] {
    std::vector<float> values;
    for (const OperandSlot* slot : {&layer.state->input, &layer.state->weight}) {
      values.push_back(slot->scale.item<float>());
      values.push_back(slot->step.item<float>());
      for (const float amax : rows(slot->amax_history)) values.push_back(amax);
    }
    return values;
  };
  const auto run = [&](float amax) {
    const auto step = std::make_shared<ScalingStep>(layer.recipe);
    layer.forward(amax, step);
    calls = 0;
    step->end_forward();
  };
  run(3.0f);
  const std::vector<float> before = slots();
  run(3.0f);
  ASSERT_EQ(calls, 2);
  const std::vector<float> after = slots();
  fails_at = 2;
  EXPECT_THROW(run(5.0f), std::runtime_error);
  EXPECT_EQ(slots(), after);
  EXPECT_NE(before, after);
}

TEST(ScalingStep, ABackwardPassLeftByAnExceptionUpdatesNothing) {
  const OneLayer layer;
  const at::Tensor input = leaf(at::ones({2, 4}));
  input.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("as a user's hook may"); });
  const auto step = std::make_shared<ScalingStep>(layer.recipe);
  const at::Tensor output = linear(input, layer.weight, {}, {layer.recipe, layer.state, step});
  EXPECT_THROW(OneLayer::backward(output, 9.0f), std::exception);
  EXPECT_EQ(layer.state->grad_output.step.item<int64_t>(), 0);
  OneLayer::backward(layer.forward(1.0f, step), 5.0f);
  EXPECT_EQ(rows(layer.state->grad_output.amax_history), (std::vector<float>{0, 0, 0, 5}));
}

TEST(ScalingStep, UnderNoGradNothingIsRead) {
  const OneLayer layer;
  const auto step = std::make_shared<ScalingStep>(layer.recipe);
  {
    const at::NoGradGuard no_grad;
    layer.forward(3.0f, step);
  }
  step->end_forward();
  EXPECT_EQ(layer.state->input.step.item<int64_t>(), 0);
  EXPECT_EQ(layer.state->input.scale.item<float>(), 0.0f);
}

TEST(ScalingStep, TheIntervalIsHonoured) {
  OneLayer layer;
  layer.recipe = shared(recipe::DelayedScaling{.interval = 3, .amax_history_len = 8});
  std::vector<float> scales;
  for (const float amax : {1.0f, 2.0f, 4.0f, 8.0f, 16.0f, 32.0f}) {
    const auto step = std::make_shared<ScalingStep>(layer.recipe);
    layer.forward(amax, step);
    step->end_forward();
    scales.push_back(layer.state->input.scale.item<float>() * 448);
  }
  const std::vector<float> expected = {1, 1, 4, 4, 4, 32};
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_FLOAT_EQ(scales[i], expected[i]) << i;
}

TEST(ScalingStep, ANewHistoryLengthKeepsTheNewestRows) {
  OneLayer layer;
  const at::Tensor buffer = layer.state->input.amax_history;  // as a module holds it
  const auto take = [&](float amax) {
    const auto step = std::make_shared<ScalingStep>(layer.recipe);
    layer.forward(amax, step);
    step->end_forward();
  };
  for (const float amax : {1.0f, 2.0f, 3.0f}) take(amax);
  EXPECT_EQ(rows(buffer), (std::vector<float>{0, 1, 2, 3}));
  layer.recipe = shared(recipe::DelayedScaling{.amax_history_len = 3});
  take(4.0f);
  EXPECT_EQ(rows(buffer), (std::vector<float>{0, 3, 4}));
  layer.recipe = shared(recipe::DelayedScaling{.amax_history_len = 6});
  take(5.0f);
  EXPECT_EQ(rows(buffer), (std::vector<float>{0, 0, 0, 3, 4, 5}));
}

TEST(ScalingStep, StateSurvivesANarrowDtype) {
  const OneLayer layer;
  auto take = [&] {
    const auto step = std::make_shared<ScalingStep>(layer.recipe);
    layer.forward(3.0f, step);
    step->end_forward();
  };
  take();
  for (at::Tensor* buffer : {&layer.state->input.scale, &layer.state->input.amax_history}) {
    buffer->set_data(buffer->to(at::kBFloat16));
  }
  take();
  EXPECT_EQ(layer.state->input.scale.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(layer.state->input.scale.item<float>(), 3.0f / 448);
}

// Stands for another rank whose every amax is `other`.
std::shared_ptr<AmaxReduction> fake_reduction(float other, std::vector<size_t>& sizes) {
  auto reduction = std::make_shared<AmaxReduction>();
  reduction->all_reduce_max = [other, &sizes](std::span<float> amaxes) {
    sizes.push_back(amaxes.size());
    for (float& amax : amaxes) amax = std::max(amax, other);
  };
  return reduction;
}

SharedSlot slot_of(const OneLayer& layer, Role role) { return {layer.state, &layer.state->slot(role)}; }

TEST(ScalingStep, ReducesForwardAndBackwardOnceEach) {
  const OneLayer layer;
  std::vector<size_t> sizes;
  const auto step = std::make_shared<ScalingStep>(layer.recipe, fake_reduction(6.0f, sizes));
  const at::Tensor output = layer.forward(3.0f, step);
  step->end_forward();
  EXPECT_EQ(sizes, (std::vector<size_t>{2}));  // input and weight
  EXPECT_FLOAT_EQ(layer.state->input.scale.item<float>(), 6.0f / 448);
  OneLayer::backward(output, 9.0f);
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 1}));
  EXPECT_FLOAT_EQ(layer.state->grad_output.scale.item<float>(), 9.0f / 57344);
}

TEST(ScalingStep, TheCollectiveHasOneSizeWhateverRan) {
  const OneLayer ran, idle;
  std::vector<size_t> sizes;
  const auto reduction = fake_reduction(6.0f, sizes);
  for (const OneLayer* layer : {&ran, &idle}) {
    for (Role role : {Role::kInput, Role::kWeight, Role::kGradOutput}) {
      reduction->slots.push_back(slot_of(*layer, role));
    }
  }
  const auto step = std::make_shared<ScalingStep>(ran.recipe, reduction);
  const at::Tensor output = ran.forward(3.0f, step);
  step->end_forward();
  OneLayer::backward(output, 5.0f);
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 2}));
  EXPECT_FLOAT_EQ(idle.state->input.scale.item<float>(), 6.0f / 448);
  EXPECT_FLOAT_EQ(idle.state->grad_output.scale.item<float>(), 6.0f / 57344);

  const auto nothing_ran = std::make_shared<ScalingStep>(ran.recipe, reduction);
  nothing_ran->end_forward();
  EXPECT_EQ(sizes.back(), 4u);
}

}  // namespace
}  // namespace plimsoll::ops
