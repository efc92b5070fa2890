#include "plimsoll/nn/checkpoint.h"

#include <ATen/autocast_mode.h>

#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/gpt.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/memory/saved_bytes.h"

namespace plimsoll::nn {
namespace {

GptConfig small(double dropout) {
  return {.vocabulary = 32, .layers = 3, .dim = 32, .heads = 2, .context = 16, .dropout = dropout};
}

struct Trained {
  std::vector<at::Tensor> losses, parameters, gradients, scales;
  int64_t saved_bytes = 0;
};

// Three steps of plain gradient descent.
Trained train(const std::optional<recipe::Recipe>& recipe, double dropout, bool checkpoints) {
  at::manual_seed(3);
  Gpt model(small(dropout));
  model->checkpoint_activations(checkpoints);
  const at::Tensor tokens = torch::randint(32, {4, 16}, torch::kLong),
                   targets = torch::randint(32, {4, 16}, torch::kLong);
  Trained result;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    at::Tensor loss;
    {
      const ops::SavedBytesCounter counter(model->parameters());
      std::optional<amp::Fp8Autocast> scope;
      if (recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *recipe});
      loss = model->loss(tokens, targets);
      result.saved_bytes = counter.bytes();
    }
    loss.backward();
    result.losses.push_back(loss.detach());
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
  for (const at::Tensor& parameter : model->parameters()) {
    result.parameters.push_back(parameter.detach());
    result.gradients.push_back(parameter.grad());
  }
  result.scales = model->buffers();
  return result;
}

void expect_same(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other, const char* what) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], other[i])) << what << " " << i;
}

void expect_same_bits(const std::optional<recipe::Recipe>& recipe, double dropout) {
  const Trained kept = train(recipe, dropout, false), made_again = train(recipe, dropout, true);
  expect_same(made_again.losses, kept.losses, "loss");
  expect_same(made_again.gradients, kept.gradients, "gradient");
  expect_same(made_again.parameters, kept.parameters, "parameter");
  expect_same(made_again.scales, kept.scales, "scaling state");
  EXPECT_LT(made_again.saved_bytes, kept.saved_bytes);
}

TEST(NnCheckpoint, HasTheBitsOfTheModelInFp32) { expect_same_bits(std::nullopt, 0); }
TEST(NnCheckpoint, DrawsTheSameRandomNumbersAgain) { expect_same_bits(std::nullopt, 0.25); }
TEST(NnCheckpoint, FindsTheScalesOfItsFirstRun) {
  for (const char* name : {"fp8", "fp8-current", "mxfp8", "bf16"}) expect_same_bits(recipe::by_name(name), 0.1);
}

TEST(NnCheckpoint, FindsTheAutocastOfItsFirstRun) {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_(true), x = torch::randn({4, 8}).requires_grad_(true);
  std::vector<at::ScalarType> seen;
  const auto segment = [&](const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs = {at::matmul(inputs[0], weight)};
    seen.push_back(outputs[0].scalar_type());
    return outputs;
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor output = checkpoint(segment, {x}, {weight})[0];
  at::autocast::set_autocast_enabled(at::kCPU, false);
  output.sum().backward();
  EXPECT_EQ(seen, (std::vector{at::kBFloat16, at::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(x.grad().defined() && weight.grad().defined());
}

TEST(NnCheckpoint, FindsThePrecisionTableOfItsFirstRun) {
  const at::Tensor start = torch::randn({8, 8}), x = torch::randn({4, 8});
  const auto gradient = [&](at::ScalarType dtype, bool checkpoints, bool backward_inside) {
    const at::Tensor weight = start.clone().requires_grad_(true);
    const auto segment = [&](const std::vector<at::Tensor>& inputs) {
      return std::vector{at::softmax(at::matmul(inputs[0], weight), 1).square()};  // softmax: fp32 in the table alone
    };
    std::optional<amp::Autocast> scope(std::in_place, at::kCPU, dtype);
    const at::Tensor output = checkpoints ? checkpoint(segment, {x}, {weight})[0] : segment({x})[0];
    if (!backward_inside) scope.reset();
    output.sum().backward();
    return weight.grad();
  };
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const bool inside : {false, true}) {
      EXPECT_TRUE(at::equal(gradient(dtype, true, inside), gradient(dtype, false, inside))) << dtype << inside;
    }
  }
  EXPECT_EQ(at::softmax(at::ones({2}, at::kHalf), 0).scalar_type(), at::kHalf);
}

TEST(NnCheckpoint, InputsMayBeUndefinedOrAskForNoGradient) {
  const at::Tensor x = torch::randn({3}).requires_grad_(true), y = torch::randn({3});
  const auto segment = [](const std::vector<at::Tensor>& in) {
    EXPECT_FALSE(in[1].defined());
    return std::vector{in[0] * in[2], in[2] * 2};
  };
  const std::vector<at::Tensor> outputs = checkpoint(segment, {x, {}, y}, {});
  (outputs[0] + outputs[1]).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y));
  EXPECT_FALSE(y.grad().defined());
}

TEST(NnCheckpoint, RunsOnceWithoutGradients) {
  int runs = 0;
  const auto segment = [&](const std::vector<at::Tensor>& in) {
    ++runs;
    return in;
  };
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(segment, {torch::ones({2}).requires_grad_(true)}, {})[0].grad_fn());
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace plimsoll::nn
