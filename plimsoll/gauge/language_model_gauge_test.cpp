// The freedoms of decoder-only models: a Gpt's and those of each family of decoders.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "plimsoll/gauge/calibration.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::gauge {
namespace {

using models::LanguageModel;
using nn::Normalization;

struct GaugedModel {
  std::string name;
  std::shared_ptr<LanguageModel> model;  // biases are not 0 and norms not the identity
  std::vector<at::Tensor> texts;         // int64 [2, tokens]
};

GaugedModel gauged(const std::string& name, std::shared_ptr<LanguageModel> model, int64_t vocabulary) {
  model->module().eval();
  for (const auto& parameter : model->module().named_parameters()) {
    // Multiples of 2^-10: 1 + w, halved eight times, leaves a w that FP32 holds.
    if (parameter.value().dim() == 1) at::Tensor(parameter.value()).uniform_(-1, 1).mul_(1024).round_().div_(1024);
  }
  GaugedModel result{.name = name, .model = std::move(model), .texts = {}};
  for (int i = 0; i < 4; ++i) result.texts.push_back(at::randint(vocabulary, {2, 9}, at::kLong));
  return result;
}

std::vector<GaugedModel> gauged_models() {
  const at::NoGradGuard no_grad;
  at::manual_seed(6);
  std::vector<GaugedModel> result;
  for (const auto& [normalization, tied] : {std::pair{Normalization::kLayerNorm, false},
                                            {Normalization::kLayerNorm, true},
                                            {Normalization::kRmsNorm, false}}) {
    const models::GptConfig config{.vocabulary = 40,
                                   .layers = 2,
                                   .dim = 24,
                                   .heads = 2,
                                   .context = 9,
                                   .tie_embeddings = tied,
                                   .normalization = normalization};
    result.push_back(gauged("gpt", models::Gpt(config).ptr(), config.vocabulary));
  }
  for (models::DecoderConfig config : models::testing::small_decoders()) {
    const std::string name = models::traits_of(config.family).model_type;
    result.push_back(gauged(name, models::Decoder(config).ptr(), config.vocabulary));
    config.ties_head = !config.ties_head;
    result.push_back(gauged(name, models::Decoder(config).ptr(), config.vocabulary));
  }
  return result;
}

models::Exponents different_exponents(const models::Freedoms& freedoms, int residual) {
  models::Exponents exponents{.residual = residual};
  for (size_t i = 0; i < freedoms.pairs.size(); ++i) exponents.pairs.push_back(static_cast<int>(i * 7 % 11) - 5);
  return exponents;
}

TEST(LanguageModelFreedoms, KeepTheBitsOfFp32) {
  const at::NoGradGuard no_grad;
  for (const GaugedModel& each : gauged_models()) {
    const models::Exponents exponents = different_exponents(each.model->freedoms(), -8);
    const auto multiplied = each.model->multiplied(exponents);
    EXPECT_EQ(multiplied->norm_epsilon(), std::ldexp(each.model->norm_epsilon(), 2 * exponents.residual));
    for (const at::Tensor& tokens : each.texts) {
      EXPECT_TRUE(multiplied->logits(tokens).equal(each.model->logits(tokens))) << each.name;
    }
    const auto before = each.model->weights_with_freedom(), after = multiplied->weights_with_freedom();
    for (const models::GaugedTensor& tensor : each.model->freedoms().weights) {
      const double factor = std::ldexp(1.0, exponent_of(tensor, exponents));
      const double shift = tensor.one_plus ? 1 : 0;
      EXPECT_TRUE((after.at(tensor.name) + shift).equal((before.at(tensor.name) + shift) * factor))
          << each.name << " " << tensor.name;
    }
  }
}

TEST(LanguageModelFreedoms, MultiplyInPlaceAndInAnotherDtypeAlike) {
  const at::NoGradGuard no_grad;
  for (const GaugedModel& each : gauged_models()) {
    const models::Exponents exponents = different_exponents(each.model->freedoms(), -2);
    const auto want = each.model->multiplied(exponents), half = each.model->multiplied(exponents, at::kHalf);
    const auto got = each.model->take_multiplied(exponents);
    for (const at::Tensor& parameter : each.model->module().parameters()) EXPECT_EQ(parameter.numel(), 0) << each.name;
    EXPECT_EQ(got->norm_epsilon(), want->norm_epsilon());
    for (const at::Tensor& tokens : each.texts) {
      EXPECT_TRUE(got->logits(tokens).equal(want->logits(tokens))) << each.name;
    }
    want->module().to(at::kHalf);
    const auto rounded = want->module().named_parameters(), narrow = half->module().named_parameters();
    for (const auto& parameter : rounded) {
      EXPECT_TRUE(narrow[parameter.key()].equal(parameter.value())) << each.name << " " << parameter.key();
    }
  }
}

TEST(LanguageModelFreedoms, NameEveryWeightOnceAndWhatHasNone) {
  for (const GaugedModel& each : gauged_models()) {
    std::map<std::string, int> times;
    const models::Freedoms freedoms = each.model->freedoms();
    for (const models::GaugedTensor& tensor : freedoms.weights) ++times[tensor.name];
    const auto weights = each.model->weights_with_freedom();
    EXPECT_EQ(times.size(), weights.size());
    int64_t elements = 0, all = 0;
    for (const auto& [name, weight] : weights) {
      EXPECT_EQ(times[name], 1) << each.name << " " << name;
      elements += weight.numel();
    }
    for (const at::Tensor& parameter : each.model->module().parameters()) all += parameter.numel();
    EXPECT_EQ(elements, all) << each.name;
    EXPECT_EQ(freedoms.without.size(), 2u) << each.name;
    const bool gelu = each.name.starts_with("gpt");
    EXPECT_NE(freedoms.without.front().find(gelu ? "GELU" : "gate"), std::string::npos) << each.name;
  }
}

TEST(LanguageModelFreedoms, AWeightThatStaysKeepsBitsThatOnePlusItWouldLose) {
  const at::NoGradGuard no_grad;
  const models::DecoderConfig config = models::testing::small_decoder(models::traits_of("gemma3_text"));
  const GaugedModel each = gauged("gemma3_text", models::Decoder(config).ptr(), config.vocabulary);
  const std::string name = "blocks.0.mlp_norm.weight";
  each.model->weights_with_freedom().at(name).fill_(0x1p-40f);
  const models::Exponents none = {.pairs = std::vector<int>(each.model->freedoms().pairs.size())};
  EXPECT_EQ(each.model->multiplied(none)->weights_with_freedom().at(name)[0].item<float>(), 0x1p-40f);
}

TEST(LanguageModelFreedoms, AReluFeedsForwardWhatItIsGiven) {
  const at::NoGradGuard no_grad;
  models::DecoderConfig config = models::testing::small_decoder(models::traits_of("gpt2"));
  config.activation = kernels::Activation::kRelu;
  const GaugedModel each = gauged("relu", models::Decoder(config).ptr(), config.vocabulary);
  const models::Freedoms freedoms = each.model->freedoms();
  EXPECT_EQ(freedoms.pairs.size(), 6u);  // of two layers: queries and keys, values and proj, fc1 and fc2
  const auto multiplied = each.model->multiplied(different_exponents(freedoms, 3));
  EXPECT_TRUE(multiplied->logits(each.texts.front()).equal(each.model->logits(each.texts.front())));
}

TEST(LanguageModelCalibration, SeesEveryValueAndValuesScaleAsTheFreedomsSay) {
  for (const GaugedModel& each : gauged_models()) {
    const models::Freedoms freedoms = each.model->freedoms();
    const models::Exponents exponents = different_exponents(freedoms, 5);
    const auto other = each.model->multiplied(exponents);
    Calibration before(*each.model), after(*other);
    before.observe(each.texts.front());
    after.observe(each.texts.front());
    for (const models::GaugedTensor& tensor : freedoms.values) {
      EXPECT_EQ(std::ldexp(before.amaxes().at(tensor.name), exponent_of(tensor, exponents)),
                after.amaxes().at(tensor.name))
          << each.name << " " << tensor.name;
    }
  }
}

TEST(LanguageModelCalibration, GradientsScaleByTheInverse) {
  for (const GaugedModel& each : gauged_models()) {
    const models::Freedoms freedoms = each.model->freedoms();
    const models::Exponents exponents = different_exponents(freedoms, 5);
    const auto other = each.model->multiplied(exponents);
    const at::Tensor tokens = each.texts.front();
    Calibration before(*each.model), after(*other);
    before.observe_gradients(tokens, {.tokens = 64});
    after.observe_gradients(tokens, {.tokens = 128, .loss_scale = 2});
    const models::Amaxes want = before.gradient_amaxes(freedoms), got = after.gradient_amaxes(freedoms);
    for (const models::GaugedTensor& value : freedoms.values) {
      const bool has_none = value.name.ends_with("/stream") || value.name.ends_with("/input");
      ASSERT_EQ(want.contains(value.name), !has_none) << each.name << " " << value.name;
      if (!want.contains(value.name)) continue;
      EXPECT_GT(want.at(value.name), 0) << each.name << " " << value.name;
      EXPECT_EQ(std::ldexp(want.at(value.name), -exponent_of(value, exponents)), got.at(value.name))
          << each.name << " " << value.name;
    }
    for (const at::Tensor& parameter : each.model->module().parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(LanguageModelWorstCase, HasWhatANormGives) {
  const at::NoGradGuard no_grad;
  constexpr float kLargest = 2000;
  for (const GaugedModel& each : gauged_models()) {
    const models::Freedoms freedoms = each.model->freedoms();
    for (const std::string norm : {"blocks.1.self_attention.layernorm_qkv.layer_norm_weight",
                                   "blocks.1.layernorm_mlp.layer_norm_weight", "norm.weight"}) {
      at::Tensor weight = each.model->module().named_parameters()[norm];
      const at::Tensor before = weight.clone();
      weight[3] = kLargest;
      float largest = 0;
      const models::Amaxes bounds = each.model->worst_case_amaxes();
      for (const models::GaugedTensor& value : freedoms.values)
        if (value.name.ends_with("/input")) largest = std::max(largest, bounds.at(value.name));
      EXPECT_GE(largest, kLargest * std::sqrt(static_cast<float>(weight.numel()))) << each.name << " " << norm;
      weight.copy_(before);
    }
  }
}

TEST(LanguageModelWorstCase, IsReachedByNoInput) {
  for (const GaugedModel& each : gauged_models()) {
    Calibration calibration(*each.model);
    for (const at::Tensor& tokens : each.texts) calibration.observe(tokens);
    const models::Amaxes bounds = each.model->worst_case_amaxes();
    for (const models::GaugedTensor& tensor : each.model->freedoms().values) {
      EXPECT_GE(bounds.at(tensor.name), calibration.amaxes().at(tensor.name)) << each.name << " " << tensor.name;
    }
  }
}

}  // namespace
}  // namespace plimsoll::gauge
