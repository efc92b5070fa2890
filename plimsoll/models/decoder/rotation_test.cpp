#include "plimsoll/models/decoder/rotation.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/nn/testing.h"

namespace plimsoll::models {
namespace {

bool has_rotation(const DecoderConfig& config) {
  return config.normalization == nn::Normalization::kRmsNorm && !config.norms_branches;
}

Decoder random_decoder(const DecoderConfig& config) {
  torch::manual_seed(3);
  Decoder model(config);
  nn::testing::randomize(*model);
  model->eval();
  return model;
}

at::Tensor parameter_of(const Decoder& model, const std::string& name) { return model->named_parameters()[name]; }

Decoder rotated(const Decoder& model, const ResidualRotation& rotation) {
  const at::NoGradGuard no_grad;
  Decoder result(rotation.config());
  result->eval();
  for (const auto& each : result->named_parameters()) {
    const auto norm = ResidualRotation::folded_norm(each.key());
    const bool is_tied_head = each.key() == "head.weight" && model->config.ties_head;
    const at::Tensor before = parameter_of(model, is_tied_head ? "token_embedding.weight" : each.key());
    each.value().copy_(rotation.rotated(each.key(), before, norm ? parameter_of(model, *norm) : at::Tensor()));
  }
  return result;
}

at::Tensor logits_of(Decoder model) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(5);
  return model->forward(torch::randint(model->config.vocabulary, {2, 20}, at::kLong));
}

// The distance by which logits move when each weight is rounded once more.
double moved_by_a_rounding(const DecoderConfig& config, const at::Tensor& logits) {
  const at::NoGradGuard no_grad;
  Decoder model = random_decoder(config);
  for (at::Tensor& weight : model->parameters()) {
    weight.copy_(weight.to(at::kDouble) * (1 + std::ldexp(1.0, -24) * (2 * at::rand(weight.sizes(), at::kDouble) - 1)));
  }
  return (logits_of(model) - logits).norm().item<double>();
}

TEST(ResidualRotation, TheModelComputesWhatItDid) {
  for (DecoderConfig config : testing::small_decoders()) {
    if (!has_rotation(config)) continue;
    for (const bool ties_head : {false, true}) {
      config.ties_head = ties_head;
      config.output_bias = config.qkv_bias = ties_head;
      SCOPED_TRACE(traits_of(config.family).model_type);
      const Decoder model = random_decoder(config);
      const Decoder turned = rotated(model, ResidualRotation(config, 1));
      const at::Tensor logits = logits_of(model), same = logits_of(turned);
      EXPECT_FALSE(at::equal(logits, same));
      // Rotated weights are rounded once, and the chains of `dim` and `ffn_dim` sums, in another order, as often each:
      // independent, that is the root of it.
      const double sums = std::sqrt(static_cast<double>(config.dim + config.ffn_dim));
      EXPECT_LT((same - logits).norm().item<double>(), sums * moved_by_a_rounding(config, logits));
    }
  }
}

TEST(ResidualRotation, LeavesDoublesThatItIsGivenAsTheyAre) {
  const DecoderConfig config = testing::small_decoders().front();
  const Decoder model = random_decoder(config);
  const ResidualRotation rotation(config, 1);
  for (const auto& each : model->named_parameters()) {
    const auto norm = ResidualRotation::folded_norm(each.key());
    const at::Tensor values = each.value().detach().to(at::kDouble), before = values.clone();
    rotation.rotated(each.key(), values, norm ? parameter_of(model, *norm).detach() : at::Tensor());
    EXPECT_TRUE(values.equal(before)) << each.key();
  }
}

TEST(ResidualRotation, SpreadsAnOutlierOverItsGroup) {
  DecoderConfig config = testing::small_decoders().front();
  const ResidualRotation rotation(config, 1);
  ASSERT_EQ(rotation.size(), 4);  // of 60
  at::Tensor row = at::zeros({1, config.dim});
  row[0][9] = 3;
  const at::Tensor spread = rotation.rotated("token_embedding.weight", row, {});
  EXPECT_TRUE(at::equal(spread.abs().slice(1, 8, 12), at::full({1, 4}, 1.5)));
  EXPECT_EQ(spread.count_nonzero().item<int64_t>(), 4);
  const at::Tensor other = ResidualRotation(config, 2).rotated("token_embedding.weight", row, {});
  EXPECT_TRUE(at::equal(other.abs(), spread.abs()));
}

TEST(ResidualRotation, RefusesNormsThatWriteTheStreamOrTakeItsMean) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    if (has_rotation(config)) continue;
    EXPECT_THROW(ResidualRotation(config, 1), std::invalid_argument) << traits_of(config.family).model_type;
  }
}

}  // namespace
}  // namespace plimsoll::models
