// The watch on a GPT: every product has a path, and an overflow in FP16 is found where it happens.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

constexpr const char* kPath = "blocks.1.layernorm_mlp.fc2";

// Writes 1e5 and more into one channel of the residual stream.
Gpt overflowing_gpt() {
  at::manual_seed(3);
  Gpt model(GptConfig{.vocabulary = 64, .layers = 3, .dim = 64, .heads = 4, .context = 16});
  model->eval();
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->named_parameters()) {
    if (parameter.key() == "blocks.1.layernorm_mlp.fc1_weight") parameter.value().mul_(100);
    if (parameter.key() == "blocks.1.layernorm_mlp.fc2_weight") parameter.value()[5].fill_(6e4);
  }
  return model;
}

void run(Gpt& model) {
  const at::NoGradGuard no_grad;
  amp::Fp8Autocast scope({.recipe = recipe::by_name("fp16")});
  model->forward(at::randint(64, {2, 16}, at::kLong));
}

TEST(WatchedGpt, EveryProductIsGuarded) {
  Gpt model = overflowing_gpt();
  watch::Session session;
  run(model);
  std::vector<std::string> names;
  for (const watch::Record& record : session.slots().records()) names.push_back(record.name);
  const auto has = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  for (int block = 0; block < 3; ++block) {
    const std::string path = "blocks." + std::to_string(block);
    for (const char* product :
         {".self_attention.layernorm_qkv", ".self_attention.proj", ".layernorm_mlp.fc1", ".layernorm_mlp.fc2"}) {
      EXPECT_TRUE(has(path + product + "/output")) << path << product;
    }
  }
  EXPECT_TRUE(has("head/output"));
}

TEST(WatchedGpt, TrapAndShadowNameTheSameOp) {
  Gpt model = overflowing_gpt();
  for (const watch::Mode mode : {watch::Mode::kTrap, watch::Mode::kShadow}) {
    watch::Session session({.mode = mode});
    run(model);
    ASSERT_FALSE(session.incidents().all().empty());
    const watch::Incident incident = session.incidents().all().front();
    EXPECT_EQ(incident.path, kPath);
    EXPECT_EQ(incident.column, 5);
    EXPECT_EQ(incident.harm, watch::Harm::kNanProducing);
    EXPECT_FALSE(incident.before.empty());
  }
}

}  // namespace
}  // namespace plimsoll::models
