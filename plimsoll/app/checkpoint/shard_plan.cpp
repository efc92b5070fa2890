#include "plimsoll/app/checkpoint/shard_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/ops/linear/tensor_codes.h"
#include "plimsoll/ops/memory/saved_bytes.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kTokens = 64;

int64_t saved_bytes(const models::GptConfig& shape, const recipe::Recipe& recipe, int64_t texts) {
  models::Gpt model(shape);
  const at::Tensor tokens = at::zeros({texts, kTokens}, at::kLong);
  const ops::SavedBytesCounter counter(model->parameters());
  amp::Fp8Autocast scope({.recipe = recipe});
  const at::Tensor loss = model->loss(tokens, tokens);
  return counter.bytes();
}

// Copies of a layer's matrices that backward reads: of an element of them.
double kept_bytes_per_weight(const models::GptConfig& shape, const recipe::Recipe& recipe) {
  constexpr int64_t kDim = 128;
  const auto of_layers = [&](int64_t layers) {
    models::GptConfig model = shape;
    model.layers = layers;
    model.dim = kDim;
    model.heads = 1;
    model.context = kTokens;
    return 1.5 * static_cast<double>(saved_bytes(model, recipe, 1)) -
           0.5 * static_cast<double>(saved_bytes(model, recipe, 3));
  };
  return (of_layers(2) - of_layers(1)) / (12.0 * kDim * kDim);
}

// Saved bytes that grow with the number of texts, by token. Copies of weights do not grow with it.
double bytes_per_token(const models::GptConfig& shape, const recipe::Recipe& recipe) {
  return static_cast<double>(saved_bytes(shape, recipe, 3) - saved_bytes(shape, recipe, 1)) / (2 * kTokens);
}

// Linear in layers, and in each of them and outside them in dim and heads.
double activation_bytes_per_token(const models::GptConfig& shape, const recipe::Recipe& recipe) {
  const auto small = [&](int64_t layers, int64_t dim, int64_t heads) {
    models::GptConfig model = shape;
    model.layers = layers;
    model.dim = dim;
    model.heads = heads;
    model.context = kTokens;
    return bytes_per_token(model, recipe);
  };
  constexpr int64_t kDim = 64;
  const auto extrapolate = [&](double base, double of_twice_the_dim, double of_twice_the_heads) {
    const double dim_steps = static_cast<double>(shape.dim) / kDim - 1,
                 head_steps = static_cast<double>(shape.heads) - 1;
    return base + dim_steps * (of_twice_the_dim - base) + head_steps * (of_twice_the_heads - base);
  };
  const std::array<double, 3> one = {small(1, kDim, 1), small(1, 2 * kDim, 1), small(1, kDim, 2)};
  const std::array<double, 3> two = {small(2, kDim, 1), small(2, 2 * kDim, 1), small(2, kDim, 2)};
  const double with_one = extrapolate(one[0], one[1], one[2]), with_two = extrapolate(two[0], two[1], two[2]);
  return with_one + static_cast<double>(shape.layers - 1) * (with_two - with_one);
}

}  // namespace

std::vector<shard::PlannedUnit> units_of(const models::GptConfig& shape, const recipe::Recipe& recipe) {
  const int64_t dim = shape.dim, norm = shape.normalization == nn::Normalization::kRmsNorm ? dim : 2 * dim;
  const int64_t matrices = 12 * dim * dim, block = matrices + 9 * dim + 2 * norm;
  const int64_t head = shape.tie_embeddings ? 0 : shape.vocabulary * dim;
  const int64_t root = (shape.vocabulary + shape.context) * dim + norm + head;
  const bool coded = ops::has_tensor_codes(recipe);  // the rest travels as it is, in FP32
  // Multiply-adds of a token: the matrices, and attention over half of the context, keys and values.
  const double of_block = static_cast<double>(matrices + shape.context * dim),
               of_head = static_cast<double>(shape.vocabulary * dim);
  const double total = static_cast<double>(shape.layers) * of_block + of_head;
  std::vector<shard::PlannedUnit> units = {{root, 4.0 * static_cast<double>(root), of_head / total}};
  const double gathered =
      4.0 * static_cast<double>(block - matrices) + (coded ? 1.0 : 4.0) * static_cast<double>(matrices);
  units.resize(static_cast<size_t>(shape.layers + 1),
               {block, gathered, of_block / total, 4 * dim * dim,
                kept_bytes_per_weight(shape, recipe) * static_cast<double>(matrices)});
  return units;
}

ShardPlan plan_shards(const ShardPlanOptions& options) {
  ShardPlan plan;
  plan.shape = shape_of(options.run).get<models::GptConfig>();
  const auto tokens = static_cast<double>(options.run.batch * plan.shape.context);  // of a forward pass
  const recipe::Recipe& recipe = options.run.recipe.wide();
  plan.activation_bytes_per_token = activation_bytes_per_token(plan.shape, recipe);
  plan.alone_seconds = tokens / options.tokens_per_second;
  const double memory_bandwidth = options.memory_bandwidth * 1e9;
  std::vector<shard::PlannedUnit> units = units_of(plan.shape, recipe);
  const double update_seconds = shard::update_bytes(units) / memory_bandwidth;
  if (update_seconds >= plan.alone_seconds) {
    refuse("--memory-bandwidth: expected an update in less than the {:.3g} s of a step, got {:.3g} s",
           plan.alone_seconds, update_seconds);
  }
  shard::PlannedStep step = {.units = std::move(units),
                             .sharing = options.run.shard,
                             .compute_seconds = plan.alone_seconds - update_seconds,
                             .memory_bytes_per_second = memory_bandwidth,
                             .activation_bytes = tokens * plan.activation_bytes_per_token,
                             .network = {.bytes_per_second = options.bandwidth * 1e9,
                                         .seconds_per_message = options.latency * 1e-6,
                                         .is_beside_cores = !options.one_machine}};
  for (const shard::PlannedUnit& unit : step.units) plan.parameters += unit.parameters;
  for (const int64_t world : options.world) {
    step.world = world;
    const shard::StepPlan planned = shard::plan_step(step);
    plan.runs.push_back({world, planned, static_cast<double>(world) * tokens / planned.step_seconds});
  }
  return plan;
}

}  // namespace plimsoll::app
