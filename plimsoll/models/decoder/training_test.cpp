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
    for (const char* name : {"bf16", "fp8", "fp8-row", "mxfp8", "nvfp4", "mxfp4"}) {
      Decoder model = seeded_decoder(config);
      const recipe::Recipe recipe = recipe::by_name(name);
      const std::vector<double> losses = losses_of(model, 10, &recipe);
      EXPECT_LT(losses.back(), 0.9 * losses.front()) << name_of(config) << " " << name;
    }
  }
}

TEST(DecoderTraining, ActivationCheckpointingChangesNoBit) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const char* name : {"fp8", "nvfp4"}) {
      const recipe::Recipe recipe = recipe::by_name(name);
      Decoder plain = seeded_decoder(config), checkpointed = seeded_decoder(config);
      checkpointed->checkpoint_activations(true);
      EXPECT_EQ(losses_of(checkpointed, 3, &recipe), losses_of(plain, 3, &recipe)) << name_of(config) << " " << name;
    }
  }
}

// Texts of these lengths in one row. Only tokens of the texts from `first` to `last` count, and not each of them.
PackedTexts packed_texts(const DecoderConfig& config, size_t first, size_t last) {
  torch::manual_seed(7);
  PackedTexts texts{.tokens = {}, .targets = {}, .lengths = {17, 1, 9, 33}};
  texts.tokens = torch::randint(config.vocabulary, {1, 60}, at::kLong);
  texts.targets = torch::randint(config.vocabulary, {1, 60}, at::kLong);
  texts.targets.slice(1, 3, std::nullopt, 5).fill_(kNoTarget);
  int64_t begin = 0;
  for (size_t i = 0; i < texts.lengths.size(); ++i) {
    if (i < first || i > last) texts.targets.narrow(1, begin, texts.lengths[i]).fill_(kNoTarget);
    begin += texts.lengths[i];
  }
  return texts;
}

struct LossAndGradients {
  double loss;
  std::vector<at::Tensor> gradients;
};

// One after the other, or in one row.
LossAndGradients packed_run(Decoder& model, const PackedTexts& texts, bool together) {
  model->zero_grad();
  const at::Tensor loss = together ? model->packed_loss(texts) : model->LanguageModel::packed_loss(texts);
  loss.backward();
  LossAndGradients result{.loss = loss.item<double>(), .gradients = {}};
  for (const at::Tensor& parameter : model->parameters()) result.gradients.push_back(parameter.grad().clone());
  return result;
}

TEST(DecoderTraining, ATextAmongOthersHasTheLossThatItHasAlone) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    Decoder model = seeded_decoder(config);
    for (const char* name : {"fp32", "bf16", "fp16", "fp8", "fp8-row", "fp8-block", "mxfp8", "mxfp4"}) {
      {
        const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});  // delayed scaling takes its scales from here
        model->packed_loss(packed_texts(config, 0, 3));
      }
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
      const at::NoGradGuard no_grad;
      for (size_t text = 0; text < 4; ++text) {
        const PackedTexts texts = packed_texts(config, text, text);
        const at::Tensor alone = model->LanguageModel::packed_loss(texts), together = model->packed_loss(texts);
        EXPECT_TRUE(torch::equal(alone, together)) << name_of(config) << " " << name << " " << text;
      }
    }
  }
}

// FP32 sums over the tokens in another order, relative to the largest of a parameter: 256 units hold every sum of these
// lengths, through all layers.
TEST(DecoderTraining, TextsInARowHaveTheGradientsOfTextsAlone) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const bool checkpointed : {false, true}) {
      Decoder model = seeded_decoder(config);
      model->checkpoint_activations(checkpointed);
      const PackedTexts texts = packed_texts(config, 0, 3);
      const LossAndGradients alone = packed_run(model, texts, /*together=*/false),
                             together = packed_run(model, texts, /*together=*/true);
      EXPECT_NEAR(together.loss, alone.loss, 8 * 0x1p-24 * alone.loss) << name_of(config);  // a rounding a text, twice
      for (size_t i = 0; i < alone.gradients.size(); ++i) {
        const double largest = alone.gradients[i].abs().max().item<double>();
        const double difference = (together.gradients[i] - alone.gradients[i]).abs().max().item<double>();
        EXPECT_LE(difference, 256 * 0x1p-24 * largest) << name_of(config) << " " << i;
      }
    }
  }
}

TEST(DecoderTraining, RefusesPackedTextsThatItCannotSee) {
  const DecoderConfig config = testing::small_decoders().front();
  Decoder model(config);
  PackedTexts texts = packed_texts(config, 0, 3);
  texts.lengths = {17, 42};
  EXPECT_THROW(model->packed_loss(texts), c10::Error);
  texts.lengths = {17, 0, 43};
  EXPECT_THROW(model->packed_loss(texts), c10::Error);
  texts.tokens = texts.targets = torch::zeros({1, config.context + 1}, at::kLong);
  texts.lengths = {config.context + 1};
  EXPECT_THROW(model->packed_loss(texts), c10::Error);
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
