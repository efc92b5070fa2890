// Codes of a weight that inference keeps, and when it must not.
#include "plimsoll/ops/linear/weight_source.h"

#include <ATen/core/grad_mode.h>

#include <functional>

#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {
namespace {

using testing::every_recipe;
using testing::expect_equal;
using testing::sample;
using testing::scaling_of;

struct InferenceLayer {
  at::Tensor x = sample({3, 70}), weight = sample({40, 70}, 0.1);
  LinearScaling scaling;

  at::Tensor run() const { return linear(x, weight, {}, scaling); }
  // By a layer that has kept nothing.
  at::Tensor expected() const { return linear(x, weight, {}, scaling_of(scaling.recipe)); }
};

// Changes one value, which no sample has, without moving the version counter: only what was kept does not see it.
void change_unseen(const at::Tensor& weight) { weight.data()[0][1].add_(100); }

TEST(InferenceWeight, IsKeptFromTheSecondCallOn) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const SharedRecipe& recipe : every_recipe()) {
    SCOPED_TRACE(std::string(recipe->name()));
    const InferenceLayer layer{.scaling = scaling_of(recipe)};
    const at::Tensor expected = layer.expected();
    for (int call = 0; call < 3; ++call) expect_equal(layer.run(), expected, "call");
    change_unseen(layer.weight);
    expect_equal(layer.run(), expected, "kept");
  }
}

TEST(InferenceWeight, IsNotKeptWhereNothingIs) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const SharedRecipe& recipe : every_recipe()) {
    SCOPED_TRACE(std::string(recipe->name()));
    const InferenceLayer layer{.scaling = scaling_of(recipe)};
    const at::Tensor kept = layer.expected();
    {
      const NoKeptWeights outer;
      { const NoKeptWeights inner; }
      for (int call = 0; call < 3; ++call) expect_equal(layer.run(), kept, "call");
      change_unseen(layer.weight);
      expect_equal(layer.run(), layer.expected(), "changed");
    }
    const at::Tensor expected = layer.expected();
    for (int call = 0; call < 3; ++call) expect_equal(layer.run(), expected, "kept again");
    change_unseen(layer.weight);
    expect_equal(layer.run(), expected, "kept");
  }
}

TEST(InferenceWeight, IsMadeAgainWhenItsTensorChanges) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const SharedRecipe& recipe : every_recipe()) {
    SCOPED_TRACE(std::string(recipe->name()));
    InferenceLayer layer{.scaling = scaling_of(recipe)};
    for (int change = 0; change < 3; ++change) {
      for (int call = 0; call < 3; ++call) expect_equal(layer.run(), layer.expected(), "in place");
      layer.weight.mul_(-1.5);
    }
    for (int change = 0; change < 3; ++change) {
      for (int call = 0; call < 3; ++call) expect_equal(layer.run(), layer.expected(), "another storage");
      layer.weight.set_data(sample({40, 70}, 0.1));
    }
    for (int change = 0; change < 20; ++change) {
      layer.weight = sample({40, 70}, 0.1);
      expect_equal(layer.run(), layer.expected(), "a tensor for each call");
    }
  }
}

TEST(InferenceWeight, IsMadeAgainWhereAWriteThatNoVersionCountsMovesManyValues) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  const at::Tensor mask = at::rand({40, 70}).gt_(0.9), other = sample({40, 70}, 0.1);
  const std::vector<std::function<void(const at::Tensor&)>> writes = {
      [](const at::Tensor& data) { data.mul_(2); }, [&](const at::Tensor& data) { data.mul_(0.99).add_(other, 0.01); },
      [&](const at::Tensor& data) { data.mul_(1 - mask); }, [&](const at::Tensor& data) { data.copy_(other); }};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool is_turned : {false, true}) {
      const at::Tensor weight = sample({40, 70}, 0.1).to(dtype);
      InferenceLayer layer{.x = sample({3, 70}).to(dtype),
                           .weight = is_turned ? weight.t().contiguous().t() : weight,
                           .scaling = scaling_of(testing::shared(recipe::by_name("fp8")))};
      for (const auto& write : writes) {
        for (int call = 0; call < 3; ++call) layer.run();
        write(layer.weight.data());
        expect_equal(layer.run(), layer.expected(), "written");
      }
    }
  }
}

TEST(InferenceWeight, FollowsTheDelayedScale) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  const InferenceLayer layer{.scaling = scaling_of(testing::shared(recipe::DelayedScaling{}))};
  LinearState& state = *layer.scaling.state;
  for (float scale : {0.001f, 0.01f}) {
    state.weight.scale.fill_(scale);
    LinearScaling fresh = scaling_of(layer.scaling.recipe);
    fresh.state->weight.scale.fill_(scale);
    const at::Tensor expected = linear(layer.x, layer.weight, {}, fresh);
    for (int call = 0; call < 3; ++call) expect_equal(layer.run(), expected, "scale");
  }
}

TEST(InferenceWeight, IsLetGoByTrainingWithMicrobatches) {
  at::manual_seed(1);
  for (const bool first : {true, false}) {
    InferenceLayer layer{.scaling = scaling_of(testing::shared(recipe::by_name("fp8")))};
    layer.scaling.is_first_microbatch = true;
    layer.run();
    layer.scaling.is_first_microbatch = {};
    auto infer = [&] {
      const at::NoGradGuard no_grad;
      return layer.run();
    };
    for (int call = 0; call < 3; ++call) infer();
    layer.scaling.is_first_microbatch = first;
    layer.run();
    layer.scaling.is_first_microbatch = {};
    change_unseen(layer.weight);
    expect_equal(infer(), layer.expected(), "after training");
  }
}

TEST(InferenceWeight, IsLetGoByTrainingAndReportedToAWatch) {
  at::manual_seed(1);
  const InferenceLayer layer{.scaling = scaling_of(testing::shared(recipe::by_name("fp8")))};
  layer.scaling.state->name = "layer";
  auto infer = [&] {
    const at::NoGradGuard no_grad;
    return layer.run();
  };
  for (int call = 0; call < 3; ++call) infer();
  layer.run();
  change_unseen(layer.weight);
  expect_equal(infer(), layer.expected(), "after training");
  for (int call = 0; call < 3; ++call) infer();
  const at::Tensor expected = infer();
  const float amax = layer.weight.abs().max().item<float>();
  change_unseen(layer.weight);
  watch::Session session;
  expect_equal(infer(), expected, "kept");
  const std::vector<watch::Record> records = session.slots().records();
  const auto weight = std::find_if(records.begin(), records.end(),
                                   [](const watch::Record& record) { return record.name == "layer/weight"; });
  ASSERT_NE(weight, records.end());
  EXPECT_EQ(weight->amax, amax);
}

TEST(PackedWeight, IsThatWhichInferenceWithoutARecipeKeeps) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  InferenceLayer layer{.scaling = scaling_of(testing::shared(recipe::HighPrecision{}))};
  WeightSource& source = layer.scaling.state->weight_source;
  const auto is_there = [&] {
    const std::optional<WeightOperands> packed = source.packed(layer.weight);
    return packed && packed->packed.data.defined() && packed->operands.output.data.is_same(layer.weight);
  };
  EXPECT_FALSE(is_there());
  for (int call = 0; call < 2; ++call) layer.run();
  EXPECT_TRUE(is_there());
  layer.weight.mul_(2);
  EXPECT_FALSE(is_there()) << "changed";
  EXPECT_FALSE(is_there()) << "still changed";
  layer.scaling.is_first_microbatch = true;
  layer.run();
  EXPECT_TRUE(is_there()) << "of the first microbatch";
  layer.scaling.recipe = testing::shared(recipe::by_name("fp8"));
  layer.run();
  EXPECT_FALSE(is_there()) << "codes";
}

TEST(PackedWeight, IsNotMadeWhereTheWeightIsReadInPlace) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  InferenceLayer layer{.scaling = scaling_of(testing::shared(recipe::HighPrecision{}))};
  const at::Tensor expected = layer.expected();
  WeightSource& source = layer.scaling.state->weight_source;
  source.read_in_place();
  const bool packs = !is_read_in_place(plain_values(layer.weight, format::Format::kFp32));
  for (const std::optional<bool> first : {std::optional<bool>(), std::optional(true)}) {
    layer.scaling.is_first_microbatch = first;
    for (int call = 0; call < 2; ++call) expect_equal(layer.run(), expected, "call");
    const std::optional<WeightOperands> kept = source.packed(layer.weight);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->packed.data.defined(), packs);
    EXPECT_TRUE(kept->operands.output.data.is_same(layer.weight));
  }
}

}  // namespace
}  // namespace plimsoll::ops
