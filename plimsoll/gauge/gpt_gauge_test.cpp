#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plimsoll/gauge/calibration.h"
#include "plimsoll/models/gpt/freedoms.h"

namespace plimsoll::gauge {
namespace {

using models::Gpt;
using models::GptConfig;
using nn::Normalization;

GptConfig gpt_config(Normalization normalization, bool tied) {
  return {.vocabulary = 40,
          .layers = 2,
          .dim = 24,
          .heads = 2,
          .context = 9,
          .tie_embeddings = tied,
          .normalization = normalization};
}

std::vector<GptConfig> gpt_kinds() {
  return {gpt_config(Normalization::kLayerNorm, false), gpt_config(Normalization::kLayerNorm, true),
          gpt_config(Normalization::kRmsNorm, false)};
}

// Biases and norms that are not the identity.
Gpt small_gpt(const GptConfig& config) {
  at::manual_seed(6);
  Gpt model(config);
  model->eval();
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.value().dim() == 1) at::Tensor(parameter.value()).uniform_(-1, 1);
  }
  return model;
}

at::Tensor tokens_of(const GptConfig& config) { return at::randint(config.vocabulary, {2, config.context}, at::kLong); }

models::Exponents different_exponents(const models::Freedoms& freedoms, int residual) {
  models::Exponents exponents{.residual = residual};
  for (size_t i = 0; i < freedoms.pairs.size(); ++i) exponents.pairs.push_back(static_cast<int>(i * 7 % 11) - 5);
  return exponents;
}

Gpt multiplied(const Gpt& model, const models::Exponents& exponents, int epsilon_exponent) {
  GptConfig config = model->config;
  config.tie_embeddings = false;
  config.norm_epsilon = std::ldexp(config.norm_epsilon, 2 * epsilon_exponent);
  Gpt result(config);
  result->eval();
  const at::NoGradGuard no_grad;
  const auto from = models::gpt_weights(*model);
  auto to = models::gpt_weights(*result);
  if (!from.contains("head.weight")) to.at("head.weight").copy_(from.at("token_embedding.weight"));
  for (const models::GaugedTensor& tensor : models::gpt_freedoms(model->config).weights) {
    to.at(tensor.name).copy_(from.at(tensor.name) * std::ldexp(1.0, exponent_of(tensor, exponents)));
  }
  return result;
}

TEST(GptFreedoms, KeepTheBitsOfFp32) {
  const at::NoGradGuard no_grad;
  for (const GptConfig& kind : gpt_kinds()) {
    Gpt model = small_gpt(kind);
    const models::Exponents exponents = different_exponents(models::gpt_freedoms(kind), -8);
    const at::Tensor tokens = tokens_of(kind), want = model->forward(tokens);
    EXPECT_TRUE(multiplied(model, exponents, -8)->forward(tokens).equal(want));
    EXPECT_FALSE(multiplied(model, exponents, 0)->forward(tokens).equal(want)) << "epsilon was forgotten";
  }
}

TEST(GptFreedoms, NameEveryWeightOnceAndWhatHasNone) {
  for (const GptConfig& kind : gpt_kinds()) {
    std::map<std::string, int> times;
    const models::Freedoms freedoms = models::gpt_freedoms(kind);
    for (const models::GaugedTensor& tensor : freedoms.weights) ++times[tensor.name];
    const auto weights = models::gpt_weights(*small_gpt(kind));
    EXPECT_EQ(times.size(), weights.size());
    int64_t elements = 0, all = 0;
    for (const auto& [name, weight] : weights) {
      EXPECT_EQ(times[name], 1) << name;
      elements += weight.numel();
    }
    for (const at::Tensor& parameter : small_gpt(kind)->parameters()) all += parameter.numel();
    EXPECT_EQ(elements, all);
    ASSERT_EQ(freedoms.without.size(), 2u);
    EXPECT_NE(freedoms.without.front().find("GELU"), std::string::npos);
  }
}

TEST(GptCalibration, SeesEveryValueAndValuesScaleAsTheFreedomsSay) {
  for (const GptConfig& kind : gpt_kinds()) {
    Gpt model = small_gpt(kind);
    const models::Freedoms freedoms = models::gpt_freedoms(kind);
    const models::Exponents exponents = different_exponents(freedoms, 5);
    Gpt other = multiplied(model, exponents, 5);
    const at::Tensor tokens = tokens_of(kind);
    Calibration before(*model), after(*other);
    before.observe(tokens);
    after.observe(tokens);
    for (const models::GaugedTensor& tensor : freedoms.values) {
      EXPECT_EQ(std::ldexp(before.amaxes().at(tensor.name), exponent_of(tensor, exponents)),
                after.amaxes().at(tensor.name))
          << tensor.name;
    }
  }
}

TEST(GptWorstCase, IsReachedByNoInput) {
  for (const GptConfig& kind : gpt_kinds()) {
    Gpt model = small_gpt(kind);
    Calibration calibration(*model);
    for (int i = 0; i < 4; ++i) calibration.observe(tokens_of(kind));
    const models::Amaxes bounds = models::worst_case_amaxes(*model);
    for (const models::GaugedTensor& tensor : models::gpt_freedoms(kind).values) {
      EXPECT_GE(bounds.at(tensor.name), calibration.amaxes().at(tensor.name)) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace plimsoll::gauge
