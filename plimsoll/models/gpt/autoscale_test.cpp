// Our modules under autoscale, which knows nothing of them: trained as in FP32, by torch's optimizer.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>

#include "plimsoll/autoscale/module.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::models {
namespace {

constexpr GptConfig kScaledGpt{.vocabulary = 64, .layers = 2, .dim = 32, .heads = 2, .context = 16};

Gpt small_gpt() {
  torch::manual_seed(3);
  return Gpt(kScaledGpt);
}

at::Tensor text() {
  torch::manual_seed(4);
  return torch::randint(kScaledGpt.vocabulary, {4, kScaledGpt.context + 1}, at::kLong);
}

// The promise of autoscaled FP16: a loss within one percent of FP32's.
constexpr double kAllowed = 0.01;

std::vector<double> losses_of(Gpt& model, torch::optim::Optimizer& optimizer, int steps) {
  const at::Tensor tokens = text();
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(tokens.slice(1, 0, kScaledGpt.context), tokens.slice(1, 1));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(GptAutoscale, AGptTrainsAsInFp32) {
  Gpt reference = small_gpt(), model = small_gpt();
  torch::optim::AdamW reference_steps(reference->parameters(), torch::optim::AdamWOptions(1e-3));
  torch::optim::AdamW steps(model->parameters(), torch::optim::AdamWOptions(1e-3));  // made before the scope
  const std::vector<double> expected = losses_of(reference, reference_steps, 50);
  const autoscale::Scope scope(*model);
  const std::vector<double> losses = losses_of(model, steps, 50);
  ASSERT_LT(expected.back(), 0.8 * expected.front());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_LT(std::fabs(losses[i] / expected[i] - 1), kAllowed) << i;
  for (const at::Tensor& parameter : model->parameters())
    EXPECT_EQ(autoscale::scaled_impl(parameter).data().scalar_type(), at::kHalf);
  for (const auto& [op, counts] : scope.session().counts()) EXPECT_EQ(counts.fallback, 0) << op;
}

TEST(GptAutoscale, AfterTheScopeParametersArePlainWithTheirValues) {
  Gpt model = small_gpt();
  const std::vector<at::Tensor> before = small_gpt()->parameters(), parameters = model->parameters();
  {
    const autoscale::Scope scope(*model);
    for (const at::Tensor& parameter : parameters) EXPECT_TRUE(autoscale::is_scaled(parameter));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_FALSE(autoscale::is_scaled(parameters[i]));
    EXPECT_TRUE(parameters[i].is_leaf() && parameters[i].requires_grad());
    // Rounding to FP16, at an exponent that makes the largest element 1 / 2 or more; subnormals are 2^-24 apart.
    const at::Tensor error = (parameters[i] - before[i]).abs();
    EXPECT_TRUE((error <= 0x1p-11 * before[i].abs() + 0x1p-24 * before[i].abs().max()).all().item<bool>()) << i;
  }
  EXPECT_EQ(model->loss(text().slice(1, 0, 8), text().slice(1, 1, 9)).dim(), 0);
}

TEST(GptAutoscale, AStateGoesOnWithTheSameBits) {
  Gpt model = small_gpt(), other = small_gpt();
  const autoscale::Scope scope(*model), other_scope(*other);
  torch::optim::SGD steps(model->parameters(), torch::optim::SGDOptions(0.1));
  losses_of(model, steps, 3);
  const autoscale::State state = autoscale::state_of(*model);
  EXPECT_EQ(state.at("token_embedding.weight").scalar_type(), at::kHalf);
  EXPECT_TRUE(state.contains("token_embedding.weight.scale") && state.contains("token_embedding.weight.remainder"));
  autoscale::load_state(*other, state);
  torch::optim::SGD other_steps(other->parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_EQ(losses_of(model, steps, 2), losses_of(other, other_steps, 2));
}

TEST(GptAutoscale, AStateOfValuesLoadsAndAnErrorNamesWhatIsMissing) {
  Gpt plain = small_gpt(), model = small_gpt();
  autoscale::State state = autoscale::state_of(*plain);
  const autoscale::Scope scope(*model);
  autoscale::load_state(*model, state);
  state.erase("norm.weight");
  EXPECT_THROW(autoscale::load_state(*model, state), c10::Error);
}

}  // namespace
}  // namespace plimsoll::models
