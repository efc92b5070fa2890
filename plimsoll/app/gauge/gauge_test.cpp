#include "plimsoll/app/gauge/gauge.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/tensors.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

constexpr models::GptConfig kShape = {.layers = 3, .dim = 64, .heads = 4, .context = 32};

// A run whose model writes 1e5 and more into one channel of the residual stream and 1e6 into one of the values, as
// training does.
void save_overflowing_gpt(const fs::path& run, const models::GptConfig& shape) {
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  models::Gpt model(shape);
  auto parameters = model->named_parameters();
  parameters["blocks.1.layernorm_mlp.fc2_weight"][5].mul_(1e7);
  parameters["blocks.0.self_attention.layernorm_qkv.weight"][2 * shape.dim + 3].mul_(1e6);
  parameters["blocks.0.self_attention.proj.weight"].select(1, 3).mul_(1e-6);
  io::save_checkpoint(run, {.step = 7,
                            .sections = {{"model", models::tensors_of(*model)}},
                            .state = {{"shape", shape}, {"recipe", "bf16"}, {"high_precision_tail", 0.5}}});
}

at::Tensor logits(const fs::path& run, const at::Tensor& tokens, const char* recipe) {
  const at::NoGradGuard no_grad;
  const TrainedModel trained = load_trained_model(run);
  const amp::Fp8Autocast scope({.recipe = recipe::by_name(recipe)});
  return trained.model->logits(tokens);
}

TEST(GaugeLanguageModel, Fp16OverflowsBeforeAndNotAfterAndFp32KeepsItsBits) {
  for (const bool rms_norm : {false, true}) {
    for (const bool own_head : {false, true}) {
      for (const bool calibrates : {false, true}) {
        models::GptConfig shape = kShape;
        shape.normalization = rms_norm ? nn::Normalization::kRmsNorm : nn::Normalization::kLayerNorm;
        shape.tie_embeddings = !own_head;
        const io::TemporaryDirectory folder;
        save_overflowing_gpt(folder / "run", shape);
        io::write_plainly(folder / "texts", "A ship may be loaded so far, and no further than its line.\n\nText.\n");
        const nlohmann::json certificate = gauge_checkpoint({.model = folder / "run",
                                                             .out = folder / "gauged",
                                                             .calibrate = calibrates ? folder / "texts" : fs::path()});
        const at::Tensor tokens = at::randint(256, {2, shape.context}, at::kLong);
        EXPECT_FALSE(logits(folder / "run", tokens, "fp16").isfinite().all().item<bool>());
        EXPECT_TRUE(logits(folder / "gauged", tokens, "fp16").isfinite().all().item<bool>());
        EXPECT_TRUE(logits(folder / "gauged", tokens, "fp32").equal(logits(folder / "run", tokens, "fp32")));
        EXPECT_TRUE(certificate.at("fp32").at("bit_identical").get<bool>());
        EXPECT_TRUE(certificate.at("fp16").at("finite").get<bool>());
        EXPECT_LT(certificate.at("exponents").at("residual").get<int>(), 0);
        EXPECT_LT(certificate.at("exponents").at("pairs").at("blocks.0.self_attention.layernorm_qkv.value").get<int>(),
                  0);
        EXPECT_THAT(certificate.at("without_freedom").dump(), ::testing::HasSubstr("GELU"));
        EXPECT_TRUE(fs::exists(folder / "gauged" / kGaugeCertificate));
      }
    }
  }
}

// Calls of GaugeOptions::check in a gauging that the one after so many ends.
int64_t checks_until(int64_t last, const io::TemporaryDirectory& folder, GaugeOptions options) {
  int64_t calls = 0;
  options.check = [&] {
    if (++calls > last) throw Interrupted("enough");
  };
  try {
    gauge_checkpoint(options);
    fs::remove_all(options.out);
  } catch (const Interrupted&) {
    EXPECT_EQ(calls, last + 1);
  }
  EXPECT_FALSE(fs::exists(options.out)) << last;
  EXPECT_FALSE(fs::exists(folder / "gauged.partial")) << last;
  return calls;
}

TEST(GaugeLanguageModel, ACheckEndsItAtEachInputOfEachMeasurementAndNothingIsLeft) {
  constexpr int64_t kInputs = 3, kMeasurements = 4, kAll = 1000;
  const io::TemporaryDirectory folder;
  save_overflowing_gpt(folder / "run", kShape);
  io::write_plainly(folder / "texts", "One line.\nAnother one.\nAnd the last.\n");
  GaugeOptions options{.model = folder / "run", .out = folder / "gauged", .calibrate = folder / "texts"};
  options.measurements = 0;
  const int64_t without = checks_until(kAll, folder, options);
  EXPECT_GE(without, 3 * kInputs + 1);  // FP32's logits, those of what is written in FP32 and in FP16, and the end
  options.measurements = kMeasurements;
  const int64_t calls = checks_until(kAll, folder, options);
  // A measurement of exponents under which FP16 overflows ends with its first input.
  EXPECT_GE(calls, without + kMeasurements);
  EXPECT_LE(calls, without + kMeasurements * kInputs);
  for (int64_t last = 0; last < calls; ++last) EXPECT_EQ(checks_until(last, folder, options), last + 1);
  options.train = true;
  EXPECT_GT(checks_until(kAll, folder, options), calls + 2 * kInputs);  // gradients in FP32 and in FP16
}

TEST(GaugeLanguageModel, TheHighPrecisionTailOfTheRunStays) {
  const io::TemporaryDirectory folder;
  save_overflowing_gpt(folder / "run", kShape);
  gauge_checkpoint({.model = folder / "run", .out = folder / "gauged", .calibrate = {}});
  EXPECT_EQ(load_trained_model(folder / "gauged").high_precision_tail, 0.5);
}

TEST(GaugeLanguageModel, ATakenNameIsRefusedAndNothingIsLeft) {
  const io::TemporaryDirectory folder;
  save_overflowing_gpt(folder / "run", kShape);
  EXPECT_THROW(gauge_checkpoint({.model = folder / "run", .out = folder / "run", .calibrate = {}}), Error);
  io::write_plainly(folder / "empty", "");
  EXPECT_THROW(gauge_checkpoint({.model = folder / "run", .out = folder / "new", .calibrate = folder / "empty"}),
               Error);
  EXPECT_FALSE(fs::exists(folder / "new"));
  EXPECT_FALSE(fs::exists(folder / "new.partial"));
}

}  // namespace
}  // namespace plimsoll::app
