#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "plimsoll/gauge/t5_calibration.h"
#include "plimsoll/models/t5/freedoms.h"

namespace plimsoll::gauge {
namespace {

using kernels::Activation;
using models::T5Config;
using models::T5ForConditionalGeneration;

const std::vector<T5Config>& kinds() {
  static const std::vector<T5Config> all = {
      {},
      {.feed_forward = Activation::kGeglu, .tie_word_embeddings = false, .scale_decoder_outputs = false},
      {.relative_bias_in_each_layer = true, .feed_forward = Activation::kSwiglu},
      {.feed_forward = Activation::kGelu, .encoder_only = true}};
  return all;
}

T5ForConditionalGeneration small_t5(T5Config config) {
  config.vocab_size = 70;
  config.d_model = 24;
  config.d_kv = 8;
  config.d_ff = 40;
  config.num_layers = config.num_decoder_layers = 2;
  config.num_heads = 2;
  at::manual_seed(4);
  T5ForConditionalGeneration model(config);
  model->reset_parameters();
  model->eval();
  return model;
}

models::T5Input input_of(const T5Config& config) {
  models::T5Input input{.input_ids = at::randint(2, 70, {2, 9}, at::kLong)};
  if (!config.encoder_only) input.decoder_input_ids = at::randint(2, 70, {2, 5}, at::kLong);
  return input;
}

// Each pair's exponent is another one.
models::Exponents some_exponents(const models::Freedoms& freedoms, int residual) {
  models::Exponents exponents{.residual = residual};
  for (size_t i = 0; i < freedoms.pairs.size(); ++i) exponents.pairs.push_back(static_cast<int>(i * 7 % 11) - 5);
  return exponents;
}

// The model with its weights multiplied, and with epsilon * 4^epsilon_exponent.
T5ForConditionalGeneration rewritten(const T5ForConditionalGeneration& model, const models::Exponents& exponents,
                                     int epsilon_exponent) {
  T5Config config = model->config;
  config.tie_word_embeddings = config.tie_word_embeddings && config.encoder_only;
  config.layer_norm_epsilon = std::ldexp(config.layer_norm_epsilon, 2 * epsilon_exponent);
  T5ForConditionalGeneration result(config);
  auto parameters = result->named_parameters();
  const auto source = model->named_parameters();
  for (const models::GaugedTensor& tensor : models::t5_freedoms(config).weights) {
    const std::string& name = source.contains(tensor.name) ? tensor.name : "shared.weight";  // a tied head
    parameters[tensor.name].set_data(source[name] * std::ldexp(1.0, exponent_of(tensor, exponents)));
  }
  result->eval();
  return result;
}

TEST(T5Freedoms, KeepTheBitsOfFp32) {
  const at::NoGradGuard no_grad;
  for (const T5Config& kind : kinds()) {
    T5ForConditionalGeneration model = small_t5(kind);
    const models::T5Input input = input_of(kind);
    const models::Exponents exponents = some_exponents(models::t5_freedoms(model->config), -8);
    T5ForConditionalGeneration same = rewritten(model, exponents, -8);
    T5ForConditionalGeneration forgotten = rewritten(model, exponents, 0);  // the norms' epsilon
    const at::Tensor want = T5Calibration(*model).observe(input).encoder_output;
    EXPECT_TRUE(T5Calibration(*same).observe(input).encoder_output.equal(want));
    EXPECT_FALSE(T5Calibration(*forgotten).observe(input).encoder_output.equal(want));
    if (kind.encoder_only) continue;
    EXPECT_TRUE(same->forward(input).logits.equal(model->forward(input).logits));
  }
}

TEST(T5Freedoms, NameEveryWeightOnce) {
  for (const T5Config& kind : kinds()) {
    T5ForConditionalGeneration model = small_t5(kind);
    std::map<std::string, int> times;
    for (const models::GaugedTensor& tensor : models::t5_freedoms(model->config).weights) ++times[tensor.name];
    for (const auto& parameter : model->named_parameters()) EXPECT_EQ(times[parameter.key()], 1) << parameter.key();
    EXPECT_EQ(times.size(), model->named_parameters().size());
  }
}

TEST(T5Freedoms, SayWhereThereIsNone) {
  EXPECT_TRUE(models::t5_freedoms({}).without.empty());
  EXPECT_EQ(models::t5_freedoms({.feed_forward = Activation::kGelu}).without.size(), 1u);
}

// The amaxes of the rewritten model are those of the model times the powers of two that the freedoms say.
TEST(T5Calibration, SeesEveryValueAndValuesScaleAsTheFreedomsSay) {
  for (const T5Config& kind : kinds()) {
    T5ForConditionalGeneration model = small_t5(kind);
    const models::T5Input input = input_of(kind);
    const models::Freedoms freedoms = models::t5_freedoms(model->config);
    const models::Exponents exponents = some_exponents(freedoms, 5);
    T5ForConditionalGeneration other = rewritten(model, exponents, 5);
    T5Calibration before(*model), after(*other);
    before.observe(input);
    after.observe(input);
    for (const models::GaugedTensor& tensor : freedoms.values) {
      EXPECT_EQ(std::ldexp(before.amaxes().at(tensor.name), exponent_of(tensor, exponents)),
                after.amaxes().at(tensor.name))
          << tensor.name;
    }
  }
}

TEST(T5Calibration, KeepsTheLargestOfAllInputs) {
  T5ForConditionalGeneration model = small_t5({});
  const models::T5Input first = input_of({}), second = input_of({});
  T5Calibration both(*model), one(*model), other(*model);
  both.observe(first);
  both.observe(second);
  one.observe(first);
  other.observe(second);
  for (const auto& [name, amax] : both.amaxes())
    EXPECT_EQ(amax, std::max(one.amaxes().at(name), other.amaxes().at(name)));
}

TEST(WorstCase, HasWhatANormGives) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5({});
  const std::string norm = "encoder.block.0.layer.1.layer_norm";
  at::Tensor weight = model->named_parameters()[norm + ".weight"];
  weight[3] = 2000;
  EXPECT_GE(models::worst_case_amaxes(*model).at(norm + "/output"),
            2000 * std::sqrt(static_cast<float>(weight.numel())));
}

TEST(WorstCase, IsReachedByNoInput) {
  for (const T5Config& kind : kinds()) {
    T5ForConditionalGeneration model = small_t5(kind);
    T5Calibration calibration(*model);
    for (int i = 0; i < 4; ++i) calibration.observe(input_of(kind));
    const models::Amaxes bounds = models::worst_case_amaxes(*model);
    for (const models::GaugedTensor& tensor : models::t5_freedoms(model->config).values) {
      EXPECT_GE(bounds.at(tensor.name), calibration.amaxes().at(tensor.name)) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace plimsoll::gauge
