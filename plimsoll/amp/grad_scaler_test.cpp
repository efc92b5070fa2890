#include "plimsoll/amp/grad_scaler.h"

#include <ATen/ATen.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/amp/scaled_model.h"

namespace plimsoll::amp {
namespace {

using ::testing::HasSubstr;
using namespace scaler_test;

// torch.amp.GradScaler's arithmetic by torch's own kernels.
struct TorchScaler {
  at::Tensor scale = at::full({}, 65536.0f), tracker = at::zeros({}, at::kInt), found = at::zeros({});

  void step(Model& model) {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& parameter : model.parameters) grads.push_back(parameter.grad());
    at::Tensor found_here = at::zeros({});
    at::_amp_foreach_non_finite_check_and_unscale_(grads, found_here,
                                                   scale.to(at::kDouble).reciprocal().to(at::kFloat));
    if (found_here.item<float>() == 0) model.optimizer.step();
    found += found_here;
  }
  void update(int64_t interval) {
    at::_amp_update_scale_(scale, tracker, found, 2.0, 0.5, interval);
    found.zero_();
  }
};

// Two thousand steps with Inf and NaN thrown in, one or two optimizers, with and without unscale_.
void expect_as_torch(bool two, bool unscales) {
  constexpr int64_t kInterval = 7;
  GradScaler scaler({.growth_interval = kInterval});
  TorchScaler torch_scaler;
  std::vector<std::unique_ptr<Model>> ours, theirs;
  for (uint64_t seed = 1; seed <= (two ? 2u : 1u); ++seed) {
    ours.push_back(std::make_unique<Model>(seed));
    theirs.push_back(std::make_unique<Model>(seed));
  }
  std::mt19937 random(5);
  int64_t skipped = 0;
  for (int step = 0; step < 2000; ++step) {
    for (size_t i = 0; i < ours.size(); ++i) {
      const std::vector<at::Tensor> slope = slopes(random);
      ours[i]->optimizer.zero_grad();
      theirs[i]->optimizer.zero_grad();
      scaler.scale(ours[i]->loss(slope)).backward();
      (theirs[i]->loss(slope) * torch_scaler.scale).backward();
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      if (unscales && step % 2 == 0) scaler.unscale_(ours[i]->optimizer);
      skipped += scaler.step(ours[i]->optimizer).skipped ? 1 : 0;
      torch_scaler.step(*theirs[i]);
    }
    scaler.update();
    torch_scaler.update(kInterval);
    ASSERT_EQ(scaler.get_scale(), torch_scaler.scale.item<double>()) << step;
    ASSERT_EQ(scaler.growth_tracker(), torch_scaler.tracker.item<int64_t>()) << step;
    for (size_t i = 0; i < ours.size(); ++i) {
      for (size_t p = 0; p < 2; ++p) ASSERT_TRUE(at::equal(ours[i]->parameters[p], theirs[i]->parameters[p])) << step;
    }
  }
  EXPECT_GT(skipped, 50);
}

TEST(GradScaler, DoesAsTorchsStepByStep) {
  for (const bool two : {false, true}) {
    for (const bool unscales : {false, true}) expect_as_torch(two, unscales);
  }
}

TEST(GradScaler, GradientsBelowFp16SurviveUnderIt) {
  const auto gradient = [](double scale) {
    const at::Tensor weight = at::full({4}, 0.5f).requires_grad_();
    GradScaler scaler({.init_scale = scale});
    // The gradient of `narrow` is 1e-9 times the scale: 0 in FP16, whose smallest number is 6e-8, without one.
    const at::Tensor narrow = weight.to(at::kHalf);
    scaler.scale((narrow.to(at::kFloat) * 1e-9f).sum()).backward();
    return weight.grad()[0].item<double>() / scale;
  };
  EXPECT_EQ(gradient(1), 0);
  // Roundings: 1e-9f, and the gradient to FP16, of which 65536e-9 is a normal number.
  EXPECT_NEAR(gradient(65536), 1e-9, 1e-9 * (0x1p-24 + 0x1p-11 * (1 + 0x1p-24)));
}

TEST(GradScaler, ScalesLossesInFp32) {
  GradScaler scaler;
  const at::Tensor loss = at::full({}, 100.0f, at::kHalf);
  EXPECT_EQ(scaler.scale(loss).item<float>(), 6553600.0f);  // beyond FP16
  EXPECT_EQ(scaler.scale(at::ones({}, at::kDouble)).scalar_type(), at::kDouble);
  EXPECT_EQ(scaler.scale({at::ones({}), at::ones({2})})[1].sum().item<float>(), 131072.0f);
}

TEST(GradScaler, SaysWhichParameterWasNotFinite) {
  Model model(1);
  GradScaler scaler;
  std::vector<at::Tensor> slope = {at::ones({4, 5}), at::ones({7})};
  slope[1][2].fill_(kNan);
  scaler.scale(model.loss(slope)).backward();
  const at::Tensor before = model.parameters[0].detach().clone();
  const ops::StepReport report = scaler.step(model.optimizer);
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.non_finite, 1);
  EXPECT_EQ(report.first_non_finite, "parameter 1 of group 0");
  EXPECT_TRUE(at::equal(model.parameters[0], before));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScaler, ClipsWhatItHasUnscaled) {
  for (const bool explicitly : {false, true}) {
    Model model(1);
    GradScaler scaler;
    model.run(scaler, 3);
    const ClipOptions clip{.max_norm = 1};
    const ops::StepReport report =
        explicitly ? scaler.unscale_(model.optimizer, clip) : scaler.step(model.optimizer, clip);
    const double norm = std::sqrt(20 * 9.0 + 7);
    EXPECT_EQ(report.grad_norm, norm);  // squares and sums are integers
    EXPECT_EQ(report.clip_factor, 1 / (norm + 1e-6));
    // Roundings to FP32: of the factor and of its product.
    const double clipped = 3 * report.clip_factor;
    EXPECT_NEAR(model.parameters[0].grad()[0][0].item<double>(), clipped, 2 * 0x1p-24 * (1 + 0x1p-24) * clipped);
  }
}

TEST(GradScaler, ANanWrittenAfterUnscaleDoesNotStopTheStep) {
  Model model(1);
  GradScaler scaler;
  model.run(scaler);
  scaler.unscale_(model.optimizer);
  model.parameters[1].mutable_grad().fill_(kNan);
  EXPECT_FALSE(scaler.step(model.optimizer).skipped);
  EXPECT_TRUE(std::isnan(model.parameters[1][0].item<float>()));
}

// An optimizer that takes the scale off itself.
class Scaled : public torch::optim::SGD, public ops::ScaledOptimizer {
 public:
  using SGD::SGD;
  ops::StepReport update(const ops::UpdateOptions& options) override {
    seen.push_back(options);
    ops::StepReport report;
    report.skipped = skips;
    return report;
  }
  std::vector<ops::UpdateOptions> seen;
  bool skips = false;
};

TEST(GradScaler, TellsAnOptimizerThatTakesTheScaleThatItIsLost) {
  Model model(1);
  Scaled optimizer(model.parameters, torch::optim::SGDOptions(0.1));
  optimizer.skips = true;
  GradScaler scaler({.init_scale = 0x1p-127});
  for (const float expected : {0x1p127f, kInf, kInf}) {
    model.run(scaler);
    scaler.step(optimizer);
    EXPECT_EQ(optimizer.seen.back().inv_loss_scale, expected);
    scaler.update();
  }
}

TEST(GradScaler, LeavesTheScaleToAnOptimizerThatTakesIt) {
  Model model(1);
  Scaled optimizer(model.parameters, torch::optim::SGDOptions(0.1));
  GradScaler scaler({.init_scale = 1024});
  model.run(scaler);
  scaler.step(optimizer, {.max_norm = 3});
  ASSERT_EQ(optimizer.seen.size(), 1u);
  EXPECT_EQ(optimizer.seen[0].inv_loss_scale, 0x1p-10);
  EXPECT_EQ(optimizer.seen[0].max_norm, 3);
  EXPECT_EQ(model.parameters[0].grad()[0][0].item<float>(), 1024);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1024);
  optimizer.skips = true;
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 512);
}

TEST(GradScaler, TwoOptimizersThatOverflowBackOffOnce) {
  Model first(1), second(2);
  GradScaler scaler;
  for (Model* model : {&first, &second}) model->run(scaler, kInf);
  for (Model* model : {&first, &second}) EXPECT_TRUE(scaler.step(model->optimizer).skipped);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScaler, StaysWithinItsBounds) {
  Model model(1);
  GradScaler grows({.init_scale = 100, .growth_interval = 1, .max_scale = 150});
  EXPECT_EQ(model.step(grows, 1), 150);
  EXPECT_EQ(model.step(grows, 1), 150);
  GradScaler shrinks({.init_scale = 100, .min_scale = 80});
  EXPECT_EQ(model.step(shrinks, kInf), 80);
  EXPECT_EQ(model.step(shrinks, kInf), 80);
  GradScaler largest({.init_scale = 0x1p126, .growth_interval = 1});
  EXPECT_EQ(model.step(largest, 0), 0x1p127);
  EXPECT_EQ(model.step(largest, 0), 0x1p127);  // 2^128 is Inf
  GradScaler fixed({.min_scale = 128, .max_scale = 128});
  EXPECT_EQ(fixed.get_scale(), 128);
  fixed.update(1024);
  EXPECT_EQ(fixed.get_scale(), 128);
}

struct CapturedWarnings : c10::WarningHandler {
  CapturedWarnings() : before(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~CapturedWarnings() override { c10::WarningUtils::set_warning_handler(before); }
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  c10::WarningHandler* before;
  std::vector<std::string> texts;
};

// torch's arithmetic goes on, down to 0. Its steps would then put NaN into the weights once gradients are finite again.
TEST(GradScaler, GoesOnWhereEveryStepIsSkipped) {
  for (const bool unscales : {false, true}) {
    Model model(1);
    GradScaler scaler;
    at::Tensor scale = at::full({}, 65536.0f), tracker = at::zeros({}, at::kInt);
    const std::vector<at::Tensor> before = Model::drawn(1);
    const CapturedWarnings captured;
    const auto step = [&](float slope) {
      model.run(scaler, slope);
      if (unscales) scaler.unscale_(model.optimizer);
      EXPECT_TRUE(scaler.step(model.optimizer).skipped);
      scaler.update();
      at::_amp_update_scale_(scale, tracker, at::ones({}), 2.0, 0.5, 2000);
      ASSERT_EQ(scaler.get_scale(), scale.item<double>());
    };
    for (int i = 0; i < 150; ++i) step(kNan);
    GradScaler resumed;
    resumed.load_state_dict(scaler.state_dict());
    EXPECT_EQ(resumed.get_scale(), 0x1p-134);
    for (int i = 0; i < 30; ++i) step(1);
    EXPECT_EQ(scaler.get_scale(), 0);
    EXPECT_TRUE(at::equal(model.parameters[0], before[0]));
    EXPECT_THAT(captured.texts, ::testing::ElementsAre(HasSubstr("whose reciprocal FP32 does not hold")));
    scaler.update(1024);
    model.run(scaler);
    EXPECT_FALSE(scaler.step(model.optimizer).skipped);
  }
}

TEST(GradScaler, DisabledItIsNotThere) {
  Model model(1), plain(1);
  GradScaler scaler({.enabled = false});
  model.run(scaler);
  scaler.unscale_(model.optimizer);
  scaler.unscale_(model.optimizer);
  scaler.step(model.optimizer);
  scaler.update();
  plain.loss({at::ones({4, 5}), at::ones({7})}).backward();
  plain.optimizer.step();
  EXPECT_TRUE(at::equal(model.parameters[0], plain.parameters[0]));
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
}

TEST(GradScaler, AScaleThatStaysIsLoadedAgain) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const GradScalerOptions options{.init_scale = 8, .growth_interval = kNever, .min_scale = 8, .max_scale = 8};
  const GradScaler scaler(options);
  GradScaler resumed(options);
  resumed.load_state_dict(scaler.state_dict());
  EXPECT_EQ(resumed.state_dict(), scaler.state_dict());
  EXPECT_EQ(resumed.get_scale(), 8);
}

TEST(GradScaler, MisuseIsNamed) {
  Model model(1);
  GradScaler scaler;
  expect_error([&] { scaler.unscale_(model.optimizer); }, "expected scale(loss) to be called before");
  expect_error([&] { scaler.step(model.optimizer); }, "expected scale(loss) to be called before");
  expect_error([&] { scaler.update(); }, "expected unscale_() or step() since the last update()");
  scaler.scale(at::ones({}));
  expect_error([&] { scaler.step(model.optimizer); }, "call backward() on scale(loss) first");
  model.run(scaler);
  for (const double max_norm : {-1.0, std::nan("")}) {
    expect_error([&] { scaler.unscale_(model.optimizer, {.max_norm = max_norm}); }, "expected max_norm >= 0, got");
    expect_error([&] { scaler.step(model.optimizer, {.max_norm = max_norm}); }, "expected max_norm >= 0, got");
  }
  scaler.unscale_(model.optimizer);
  expect_error([&] { scaler.unscale_(model.optimizer); },
               "already been called on this optimizer since the last update()");
  expect_error([&] { scaler.step(model.optimizer, {.max_norm = 1}); }, "expected max_norm in unscale_()");
  scaler.step(model.optimizer);
  expect_error([&] { scaler.unscale_(model.optimizer); }, "is being called after step()");
  expect_error([&] { scaler.step(model.optimizer); }, "step() has already been called since the last update()");
  scaler.update();
  expect_error([&] { scaler.update(-1); }, "expected a positive scale");
  expect_error([&] { scaler.scale(at::ones({}, at::kLong)); }, "expected a loss of floating point");
}

TEST(GradScaler, Fp16GradientsNeedMasterWeights) {
  const at::Tensor weight = at::ones({3}, at::kHalf).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(0.1));
  GradScaler scaler;
  scaler.scale(weight.to(at::kFloat).sum() * 1e-3).backward();
  expect_error([&] { scaler.unscale_(optimizer); }, "got fp16 in parameter 0 of group 0: keep master weights");
}

TEST(GradScaler, RefusesOptionsOutOfRange) {
  expect_error([] { GradScaler({.growth_factor = 1}); }, "expected growth_factor > 1, got 1");
  expect_error([] { GradScaler({.backoff_factor = 1.5}); }, "expected backoff_factor between 0 and 1, got 1.5");
  expect_error([] { GradScaler({.growth_interval = 0}); }, "expected growth_interval > 0, got 0");
  expect_error([] { GradScaler({.init_scale = 0}); }, "expected a positive scale");
  expect_error([] { GradScaler({.min_scale = 2, .max_scale = 1}); }, "expected 0 <= min_scale <= max_scale");
  Model model(1);
  expect_error(
      [&] {
        GradScaler({.optimizers = {&model.optimizer, &model.optimizer}});
      },
      "expected each of the optimizers once");
}

}  // namespace
}  // namespace plimsoll::amp
