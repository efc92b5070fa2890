// A GPT whose blocks are computed again in backward has the bits of one that keeps them.
#include <ATen/core/grad_mode.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/memory/saved_bytes.h"

namespace plimsoll::models {
namespace {

GptConfig small_with_dropout(double dropout) {
  return {.vocabulary = 32, .layers = 3, .dim = 32, .heads = 2, .context = 16, .dropout = dropout};
}

struct CheckpointedRun {
  std::vector<at::Tensor> losses, parameters, gradients, scales;
  int64_t saved_bytes = 0;
};

// Three steps of plain gradient descent.
CheckpointedRun run_checkpointed(const std::optional<recipe::Recipe>& recipe, double dropout, bool checkpoints) {
  at::manual_seed(3);
  Gpt model(small_with_dropout(dropout));
  model->checkpoint_activations(checkpoints);
  const at::Tensor tokens = torch::randint(32, {4, 16}, torch::kLong),
                   targets = torch::randint(32, {4, 16}, torch::kLong);
  CheckpointedRun result;
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
  const CheckpointedRun kept = run_checkpointed(recipe, dropout, false),
                        made_again = run_checkpointed(recipe, dropout, true);
  expect_same(made_again.losses, kept.losses, "loss");
  expect_same(made_again.gradients, kept.gradients, "gradient");
  expect_same(made_again.parameters, kept.parameters, "parameter");
  expect_same(made_again.scales, kept.scales, "scaling state");
  EXPECT_LT(made_again.saved_bytes, kept.saved_bytes);
}

TEST(GptCheckpoint, HasTheBitsOfTheModelInFp32) { expect_same_bits(std::nullopt, 0); }
TEST(GptCheckpoint, DrawsTheSameRandomNumbersAgain) { expect_same_bits(std::nullopt, 0.25); }
TEST(GptCheckpoint, FindsTheScalesOfItsFirstRun) {
  for (const char* name : {"fp8", "fp8-current", "mxfp8", "nvfp4", "mxfp4", "bf16"})
    expect_same_bits(recipe::by_name(name), 0.1);
}

}  // namespace
}  // namespace plimsoll::models
