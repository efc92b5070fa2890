#include "plimsoll/amp/fp8_autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/second_run.h"
#include "plimsoll/ops/linear/linear.h"

namespace plimsoll::amp {
namespace {

struct Layer {
  std::shared_ptr<ops::LinearState> state = std::make_shared<ops::LinearState>();
  at::Tensor weight = at::eye(4).requires_grad_(true);

  at::Tensor forward(float amax = 1.0f) const {
    return ops::linear(at::full({2, 4}, amax), weight, {}, linear_scaling(state, weight));
  }
  int64_t steps() const { return state->input.step.item<int64_t>(); }
};

TEST(Fp8Autocast, HoldsInsideAndNowhereElse) {
  EXPECT_EQ(current_recipe(), nullptr);
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("mxfp8")});
    EXPECT_EQ(current_recipe()->name(), "mxfp8");
    std::thread([] { EXPECT_EQ(current_recipe(), nullptr); }).join();
  }
  EXPECT_EQ(current_recipe(), nullptr);
}

TEST(Fp8Autocast, TheInnerScopeHoldsInsideAndTheOuterOwnsTheStep) {
  const Layer layer;
  {
    const Fp8Autocast outer({.recipe = recipe::by_name("fp8")});
    const auto step = current_step();
    {
      const Fp8Autocast inner({.recipe = recipe::by_name("fp8-block")});
      EXPECT_EQ(current_recipe()->name(), "fp8-block");
      EXPECT_EQ(current_step(), step);
    }
    {
      const Fp8Autocast off({.enabled = false});
      EXPECT_EQ(current_recipe(), nullptr);
      EXPECT_EQ(layer.forward().scalar_type(), at::kFloat);
    }
    {
      const Fp8Autocast inner({.recipe = recipe::by_name("fp8")});
      layer.forward();
    }
    EXPECT_EQ(layer.steps(), 0);
    EXPECT_EQ(current_recipe()->name(), "fp8");
  }
  EXPECT_EQ(layer.steps(), 1);
}

TEST(Fp8Autocast, AScopeLeftByAnExceptionUpdatesNothing) {
  const Layer layer;
  const auto leave_by_exception = [&] {
    const Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    layer.forward();
    throw std::runtime_error("out of data");
  };
  EXPECT_THROW(leave_by_exception(), std::runtime_error);
  EXPECT_EQ(layer.steps(), 0);
  EXPECT_EQ(layer.state->input.scale.item<float>(), 0.0f);
  EXPECT_EQ(current_recipe(), nullptr);
}

TEST(Fp8Autocast, EndsEarlyOrIsAbandoned) {
  const Layer layer;
  Fp8Autocast ended({.recipe = recipe::by_name("fp8")});
  layer.forward();
  ended.end();
  EXPECT_EQ(layer.steps(), 1);
  Fp8Autocast abandoned({.recipe = recipe::by_name("fp8")});
  layer.forward();
  abandoned.abandon();
  abandoned.end();
  EXPECT_EQ(layer.steps(), 1);
  EXPECT_EQ(current_recipe(), nullptr);
}

TEST(Fp8Autocast, ScopesThatCoroutinesHoldEndInAnyOrder) {
  const Layer layer;
  auto outer = std::make_unique<Fp8Autocast>(Fp8AutocastOptions{.recipe = recipe::by_name("fp8")});
  auto middle = std::make_unique<Fp8Autocast>(Fp8AutocastOptions{.recipe = recipe::by_name("mxfp8")});
  auto inner = std::make_unique<Fp8Autocast>(Fp8AutocastOptions{.recipe = recipe::by_name("fp8-block")});
  middle->end();
  EXPECT_EQ(current_recipe()->name(), "fp8-block");
  inner->end();
  EXPECT_EQ(current_recipe()->name(), "fp8");
  layer.forward();
  inner = std::make_unique<Fp8Autocast>(Fp8AutocastOptions{.enabled = false});
  outer->end();
  EXPECT_EQ(layer.steps(), 1);
  inner.reset();
  EXPECT_EQ(current_recipe(), nullptr);
}

TEST(Fp8Autocast, EndsOnTheThreadThatItBeganOnAndNowhereElse) {
  Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
  std::thread([&] { EXPECT_THROW(scope.end(), c10::Error); }).join();
  EXPECT_EQ(current_recipe()->name(), "fp8");
}

TEST(Fp8Autocast, ReleasedItGivesTheStepThatItOwns) {
  const Layer layer;
  Fp8Autocast outer({.recipe = recipe::by_name("fp8")});
  Fp8Autocast inner({.recipe = recipe::by_name("fp8")});
  layer.forward();
  EXPECT_EQ(inner.release(), nullptr);
  const auto step = outer.release();
  EXPECT_EQ(current_recipe(), nullptr);
  EXPECT_EQ(layer.steps(), 0);
  step->end_forward();
  EXPECT_EQ(layer.steps(), 1);
}

TEST(Fp8Autocast, BackwardUsesTheRecipeOfItsForward) {
  const Layer layer;
  at::Tensor output;
  {
    const Fp8Autocast scope({.recipe = recipe::DelayedScaling{.fp8_format = recipe::Fp8Format::kE4m3}});
    output = layer.forward();
  }
  const Fp8Autocast other({.recipe = recipe::by_name("fp8")});
  torch::autograd::backward({output}, {at::full_like(output, 2.0f)});
  EXPECT_FLOAT_EQ(layer.state->grad_output.scale.item<float>(), 2.0f / 448);
}

TEST(Fp8Autocast, AUsersFunctionMayThrowWithoutHarm) {
  const Layer layer;
  const recipe::DelayedScaling recipe{.amax_compute_algo =
                                          recipe::AmaxFunction([](std::span<const float>) { return -1.0f; })};
  const auto run = [&] {
    const Fp8Autocast scope({.recipe = recipe});
    layer.forward();
  };
  EXPECT_THROW(run(), std::invalid_argument);
  EXPECT_EQ(current_recipe(), nullptr);
}

TEST(RecipeFor, ARecipeByFormatFollowsTorchsAutocastThenTheParameter) {
  const auto made = [](format::Format format) {
    return std::make_shared<const recipe::Recipe>(recipe::DelayedScaling{.high_precision_format = format});
  };
  const auto by_format = std::make_shared<const RecipesByFormat>(
      RecipesByFormat{made(format::Format::kFp32), made(format::Format::kBf16), made(format::Format::kFp16)});
  const Fp8Autocast scope(Fp8AutocastOptions{.by_format = by_format});
  EXPECT_EQ(recipe_for(at::ones({1})), by_format->fp32);
  EXPECT_EQ(recipe_for(at::ones({1}, at::kHalf)), by_format->fp16);
  EXPECT_EQ(recipe_for(at::ones({1}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16))), by_format->bf16);
  {
    const Autocast narrow(at::kCPU, at::kBFloat16);
    EXPECT_EQ(recipe_for(at::ones({1})), by_format->bf16);
  }
  const Fp8Autocast off({.enabled = false});
  EXPECT_EQ(recipe_for(at::ones({1}, at::kHalf))->name(), "fp16");
}

TEST(SecondRun, HasTheScopeAndTheTableOfTheFirstThatHaveEnded) {
  std::optional<RunState> state;
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("mxfp8")});
    const PrecisionTableGuard table(true);
    state.emplace();
  }
  const Fp8Autocast other({.recipe = recipe::by_name("fp8")});
  for (int run = 0; run < 2; ++run) {
    const SecondRun second(*state);
    EXPECT_EQ(current_recipe()->name(), "mxfp8");
    EXPECT_TRUE(precision_table_holds());
    EXPECT_TRUE(replays_layers());
  }
  EXPECT_EQ(current_recipe()->name(), "fp8");
  EXPECT_FALSE(precision_table_holds());
  EXPECT_FALSE(replays_layers());
}

TEST(RecipeFor, FollowsTheScopeThenTorchsAutocastThenTheParameter) {
  const at::Tensor parameter = at::ones({2, 2});
  EXPECT_EQ(recipe_for(parameter)->name(), "fp32");
  EXPECT_EQ(recipe_for(parameter.to(at::kHalf))->name(), "fp16");
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  EXPECT_EQ(recipe_for(parameter)->name(), "bf16");
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("mxfp8")});
    EXPECT_EQ(recipe_for(parameter)->name(), "mxfp8");
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(RecipeFor, TorchsAutocastOfAnotherDeviceSaysNothing) {
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCUDA);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  EXPECT_EQ(torch_autocast_dtype(at::kCUDA), at::kBFloat16);
  EXPECT_EQ(torch_autocast_dtype(at::kCPU), std::nullopt);
  EXPECT_EQ(torch_autocast_dtype(at::kMeta), std::nullopt);
  EXPECT_EQ(recipe_for(at::ones({2, 2}))->name(), "fp32");
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::set_autocast_dtype(at::kCUDA, before);
}

}  // namespace
}  // namespace plimsoll::amp
