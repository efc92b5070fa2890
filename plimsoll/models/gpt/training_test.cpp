// Properties of training runs: same bits for any number of threads, memory, learning, survival of an Inf.
#include <torch/optim/adamw.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

using nn::testing::Tensors;

at::Tensor scoped_loss(Gpt& model, const char* recipe_name, const at::Tensor& text) {
  const amp::Fp8Autocast scope({.recipe = recipe::by_name(recipe_name)});
  const int64_t seq = text.size(1) - 1;
  return model->loss(text.slice(1, 0, seq), text.slice(1, 1));
}

// The losses of some steps and the parameters and buffers after them.
Tensors train(const char* recipe_name, const GptConfig& config, int threads) {
  const nn::testing::ScopedThreads scoped_threads(threads);
  torch::manual_seed(11);
  Gpt model(config);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  Tensors result;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor text = torch::randint(config.vocabulary, {8, config.context + 1}, at::kLong);
    optimizer.zero_grad();
    const at::Tensor loss = scoped_loss(model, recipe_name, text);
    loss.backward();
    optimizer.step();
    result.push_back(loss.detach());
  }
  for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.detach());
  for (const at::Tensor& buffer : model->buffers()) result.push_back(buffer);
  return result;
}

TEST(GptTraining, BitsDoNotDependOnTheNumberOfThreads) {
  const GptConfig config{.vocabulary = 256, .layers = 2, .dim = 128, .heads = 4, .context = 72};
  for (const char* name : {"fp32", "bf16", "fp8", "fp8-block", "mxfp8", "nvfp4", "mxfp4"}) {
    SCOPED_TRACE(name);
    const Tensors one = train(name, config, 1);
    for (const int threads : {2, 3}) {
      const Tensors several = train(name, config, threads);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], several[i])) << i;
    }
  }
}

// bench/gpt_step.py reports 375.9 MB for PyTorch 2.13's bf16 autocast on this shape; the project's bar is 0.6 of it.
constexpr GptConfig kMeasured{.vocabulary = 256, .layers = 6, .dim = 384, .heads = 6, .context = 256};
constexpr double kTorchBytes = 375.9e6;

TEST(GptTraining, Fp8SavesAtMostSixTenthsOfTorchsBytes) {
  Gpt model(kMeasured);
  const at::Tensor text = torch::randint(256, {16, 257}, at::kLong);
  const ops::SavedBytesCounter saved(model->parameters());
  const at::Tensor loss = scoped_loss(model, "fp8", text);
  RecordProperty("saved_bytes", std::to_string(saved.bytes()));
  EXPECT_LE(static_cast<double>(saved.bytes()), 0.6 * kTorchBytes);
  // Less than the pre-activations of the MLPs alone would mean that the counter is blind.
  EXPECT_GE(saved.bytes(), 6 * 4096 * 4 * 384 * 2);
}

TEST(GptTraining, MemorisesAShortTextInEveryRecipe) {
  const std::string text = "a line that shows how far a ship may be loaded";
  at::Tensor tokens = torch::empty({1, static_cast<int64_t>(text.size())}, at::kLong);
  for (size_t i = 0; i < text.size(); ++i) tokens[0][static_cast<int64_t>(i)] = text[i];
  const GptConfig config{.vocabulary = 128, .layers = 2, .dim = 64, .heads = 4, .context = 48};
  for (const char* name :
       {"fp32", "bf16", "fp8", "fp8-current", "fp8-block", "mxfp8", "nvfp4", "nvfp4-4over6", "ms-eden", "mxfp4"}) {
    SCOPED_TRACE(name);
    torch::manual_seed(5);
    Gpt model(config);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
    for (int step = 0; step < 80; ++step) {
      optimizer.zero_grad();
      scoped_loss(model, name, tokens).backward();
      optimizer.step();
    }
    model->eval();
    TokenCache cache = model->make_cache();
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
    std::string written = text.substr(0, 2);
    at::Tensor logits = model->extend(tokens.slice(1, 0, 2), cache);
    while (written.size() < text.size()) {
      const at::Tensor next = logits.slice(1, logits.size(1) - 1).argmax(-1);
      written.push_back(static_cast<char>(next.item<int64_t>()));
      logits = model->extend(next, cache);
    }
    EXPECT_EQ(written, text);
  }
}

bool all_finite(const Tensors& tensors) {
  return std::ranges::all_of(tensors, [](const at::Tensor& x) { return x.isfinite().all().item<bool>(); });
}

Tensors gradients(Gpt& model) {
  Tensors result;
  for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.grad());
  return result;
}

TEST(GptTraining, AnInfGradientIsReportedAndPoisonsNothing) {
  torch::manual_seed(6);
  const GptConfig config{.vocabulary = 64, .layers = 2, .dim = 64, .heads = 4, .context = 16};
  Gpt model(config);
  const at::Tensor text = torch::randint(64, {2, 17}, at::kLong);
  for (const char* name : {"fp8", "fp8-current", "mxfp8", "nvfp4", "mxfp4", "bf16"}) {
    SCOPED_TRACE(name);
    model->zero_grad();
    scoped_loss(model, name, text).backward();
    const Tensors clean = gradients(model);
    EXPECT_TRUE(all_finite(clean));

    watch::Session session;
    model->zero_grad();
    at::Tensor logits;
    {
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
      logits = model->forward(text.slice(1, 0, 16));
    }
    at::Tensor gradient = torch::full_like(logits, 1e-3);
    gradient[0][3][5] = std::numeric_limits<float>::infinity();
    logits.backward(gradient);
    EXPECT_FALSE(all_finite(gradients(model)));
    ASSERT_FALSE(session.slots().non_finite().empty());
    EXPECT_TRUE(session.slots().non_finite().front().name.starts_with("head/"));

    EXPECT_TRUE(all_finite(model->buffers()));
    model->zero_grad();
    scoped_loss(model, name, text).backward();
    EXPECT_TRUE(all_finite(gradients(model)));
  }
}

}  // namespace
}  // namespace plimsoll::models
