// Decoders of every family in training: under autoscale, under recipes, watched, and checkpointed.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cmath>
#include <set>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/autoscale/module.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kText = 17;

std::string name_of(const DecoderConfig& config) { return traits_of(config.family).model_type; }

Decoder seeded_decoder(const DecoderConfig& config) {
  torch::manual_seed(5);
  return Decoder(config);
}

at::Tensor text_for(const DecoderConfig& config) {
  torch::manual_seed(6);
  return torch::randint(config.vocabulary, {3, kText}, at::kLong);
}

std::vector<double> losses_of(Decoder& model, int steps, const recipe::Recipe* recipe = nullptr) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(5e-3));
  const at::Tensor tokens = text_for(model->config);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Fp8Autocast scope(recipe == nullptr ? amp::Fp8AutocastOptions{.enabled = false}
                                                     : amp::Fp8AutocastOptions{.recipe = *recipe});
      loss = model->loss(tokens.slice(1, 0, kText - 1), tokens.slice(1, 1));
    }
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(DecoderTraining, AutoscaleTrainsAsFp32) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(name_of(config));
    Decoder reference = seeded_decoder(config), model = seeded_decoder(config);
    const std::vector<double> expected = losses_of(reference, 10);
    const autoscale::Scope scope(*model);
    const std::vector<double> losses = losses_of(model, 10);
    ASSERT_LT(expected.back(), 0.9 * expected.front());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_LT(std::fabs(losses[i] / expected[i] - 1), 0.01) << i;
    for (const auto& [op, counts] : scope.session().counts()) EXPECT_EQ(counts.fallback, 0) << op;
  }
}

TEST(DecoderTraining, EveryRecipeLearnsTheText) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const char* name : {"bf16", "fp8", "fp8-row", "mxfp8"}) {
      Decoder model = seeded_decoder(config);
      const recipe::Recipe recipe = recipe::by_name(name);
      const std::vector<double> losses = losses_of(model, 10, &recipe);
      EXPECT_LT(losses.back(), 0.9 * losses.front()) << name_of(config) << " " << name;
    }
  }
}

TEST(DecoderTraining, ActivationCheckpointingChangesNoBit) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    const recipe::Recipe recipe = recipe::by_name("fp8");
    Decoder plain = seeded_decoder(config), checkpointed = seeded_decoder(config);
    checkpointed->checkpoint_activations(true);
    EXPECT_EQ(losses_of(checkpointed, 3, &recipe), losses_of(plain, 3, &recipe)) << name_of(config);
  }
}

TEST(DecoderTraining, EveryProductIsWatchedUnderItsPath) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    Decoder model = seeded_decoder(config);
    std::set<std::string> names;
    {
      watch::Session session;
      const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp16")});
      model->forward(text_for(config));
      for (const watch::Record& record : session.slots().records()) names.insert(record.name);
    }
    for (const char* path : {"blocks.0.self_attention.layernorm_qkv", "blocks.1.self_attention.proj",
                             "blocks.0.layernorm_mlp.fc1", "blocks.1.layernorm_mlp.fc2", "head"}) {
      EXPECT_TRUE(names.contains(std::string(path) + "/output")) << name_of(config) << " " << path;
    }
  }
}

}  // namespace
}  // namespace plimsoll::models
