#include "plimsoll/app/checkpoint/shard_plan.h"

#include <gtest/gtest.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/ops/memory/saved_bytes.h"

namespace plimsoll::app {
namespace {

ShardPlanOptions options_for(const models::GptConfig& shape, const std::string& recipe) {
  ShardPlanOptions options;
  options.run.layers = shape.layers;
  options.run.dim = shape.dim;
  options.run.heads = shape.heads;
  options.run.context = shape.context;
  options.run.recipe = parse_recipe(recipe);
  options.tokens_per_second = 1000;
  options.bandwidth = 1;
  return options;
}

TEST(ShardPlan, UnitsHaveTheParametersOfTheModel) {
  for (const bool own_head : {true, false}) {
    for (const bool rms_norm : {true, false}) {
      const models::GptConfig shape = {
          .layers = 3,
          .dim = 64,
          .heads = 2,
          .context = 24,
          .tie_embeddings = !own_head,
          .normalization = rms_norm ? nn::Normalization::kRmsNorm : nn::Normalization::kLayerNorm};
      models::Gpt model(shape);
      int64_t all = 0, block = 0, planned = 0;
      for (const at::Tensor& parameter : model->parameters()) all += parameter.numel();
      for (const at::Tensor& parameter : model->blocks[0]->parameters()) block += parameter.numel();
      const std::vector<shard::PlannedUnit> units = units_of(shape, parse_recipe("fp8").value);
      double share = 0;
      for (const shard::PlannedUnit& unit : units) {
        planned += unit.parameters;
        share += unit.share;
      }
      EXPECT_EQ(units.size(), 4u);
      EXPECT_EQ(units[1].parameters, block);
      EXPECT_EQ(planned, all);
      const double matrices = 12 * 64 * 64;
      EXPECT_EQ(units[1].gathered_bytes, 4 * (static_cast<double>(block) - matrices) + matrices);
      EXPECT_NEAR(share, 1, 8 * 0x1p-53);  // a quotient of each of the four units, and their sum
    }
  }
}

TEST(ShardPlan, ActivationsAreThoseThatBackwardKeeps) {
  const models::GptConfig shape = {.layers = 3, .dim = 192, .heads = 6, .context = 32};
  for (const char* recipe : {"fp32", "bf16", "fp8"}) {
    const ShardPlan plan = plan_shards(options_for(shape, recipe));
    const auto saved = [&](int64_t texts) {
      models::Gpt model(shape);
      const at::Tensor tokens = at::zeros({texts, shape.context}, at::kLong);
      const ops::SavedBytesCounter counter(model->parameters());
      amp::Fp8Autocast scope({.recipe = parse_recipe(recipe).value});
      const at::Tensor loss = model->loss(tokens, tokens);
      return static_cast<double>(counter.bytes());
    };
    const double counted = (saved(8) - saved(4)) / static_cast<double>(4 * shape.context);
    EXPECT_EQ(plan.activation_bytes_per_token, counted) << recipe;
  }
}

}  // namespace
}  // namespace plimsoll::app
