#include "plimsoll/app/gauge/gauge_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kTargets = 2 * 8;
// Roundings in a row between a loss and a weight's gradient: two layers of some 12 operators, forward and backward.
constexpr double kRoundings = 2 * 2 * 12;
constexpr double kMostRounding = kRoundings * 0x1p-11;

struct Measured {
  std::string name;
  std::shared_ptr<models::LanguageModel> model;
  GaugeInputs inputs;  // windows, int64 [1, 9]
};

std::vector<Measured> measured_models() {
  const at::NoGradGuard no_grad;
  at::manual_seed(4);
  std::vector<Measured> result;
  for (models::DecoderConfig config : models::testing::small_decoders()) {
    for (const bool ties_head : {false, true}) {
      config.ties_head = ties_head;
      Measured each{models::traits_of(config.family).model_type, models::Decoder(config).ptr(), {}};
      for (int i = 0; i < 2; ++i) each.inputs.windows.push_back(at::randint(config.vocabulary, {1, 9}, at::kLong));
      result.push_back(std::move(each));
    }
  }
  return result;
}

models::Exponents exponents_of(const models::Freedoms& freedoms, int residual, int pairs) {
  return {.residual = residual, .pairs = std::vector<int>(freedoms.pairs.size(), pairs)};
}

TEST(GradientError, IsRoundingWhereNothingUnderflows) {
  for (const Measured& each : measured_models()) {
    GradientError error(*each.model, each.inputs, kTargets);
    const models::Freedoms freedoms = each.model->freedoms();
    // The gradients are those of the source: powers of two, of the weights and of the loss, are taken out again.
    for (const auto& exponents : {exponents_of(freedoms, 0, 0), exponents_of(freedoms, 2, -3)}) {
      const double found = error(exponents, 1024);
      EXPECT_GT(found, 0x1p-14) << each.name;
      EXPECT_LT(found, kMostRounding) << each.name;
    }
    for (const at::Tensor& parameter : each.model->module().parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(GradientError, GrowsAsGradientsUnderflowAndIsNaNWhereTheyOverflow) {
  for (const Measured& each : measured_models()) {
    const models::Exponents none = exponents_of(each.model->freedoms(), 0, 0);
    GradientError error(*each.model, each.inputs, kTargets), large_step(*each.model, each.inputs, kTargets << 40);
    EXPECT_GT(error(none, 0x1p-16), 4 * error(none, 1024)) << each.name;
    EXPECT_GT(large_step(none, 1), 0.9) << each.name;  // all of it
    EXPECT_EQ(large_step(none, 0x1p40), error(none, 1)) << each.name;
    EXPECT_TRUE(std::isnan(error(none, 0x1p40))) << each.name;
  }
}

}  // namespace
}  // namespace plimsoll::app
