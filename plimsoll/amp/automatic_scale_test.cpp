#include "plimsoll/amp/automatic_scale.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/amp/gradient_sample.h"

namespace plimsoll::amp {
namespace {

// Gradients of which a share lies at `small`, the others at 1, with `scale` on them.
ScaleEvidence evidence(float small, double share, double scale, bool may_grow = true) {
  const auto count = static_cast<int64_t>(1000 * share);
  const at::Tensor grads = at::ones({1000});
  grads.slice(0, 0, count).fill_(small);
  return {.histogram = gradient_histogram({grads * scale}), .grad_norm = 1, .may_grow = may_grow};
}

TEST(AutomaticScale, GrowsUntilTheShareIsNoLongerFlushed) {
  const AutomaticScale options{.flushed_share = 0.05};
  EXPECT_EQ(automatic_scale(1, evidence(0x1p-20f, 0.1, 1), options), 0x1p6);
  EXPECT_EQ(automatic_scale(4, evidence(0x1p-20f, 0.1, 4), options), 0x1p6);
  EXPECT_EQ(automatic_scale(64, evidence(0x1p-20f, 0.1, 64), options), 64) << "all of it is normal";
  EXPECT_EQ(automatic_scale(1, evidence(0x1p-20f, 0.04, 1), options), 1) << "few enough";
  EXPECT_EQ(automatic_scale(1, evidence(0x1p-20f, 0.1, 1, false), options), 1) << "not yet";
}

TEST(AutomaticScale, LeavesHeadroomAboveTheNormAtOnce) {
  const AutomaticScale options{.flushed_share = 0.05, .headroom = 8};
  // 65504 / 8 is just below 2^13.
  EXPECT_EQ(automatic_scale(1, evidence(0x1p-40f, 0.1, 1), options), 0x1p12);
  EXPECT_EQ(automatic_scale(0x1p20, evidence(1, 0, 0x1p20, false), options), 0x1p12);
  ScaleEvidence large = evidence(1, 0, 1, false);
  large.grad_norm = 1e6;
  EXPECT_EQ(automatic_scale(1, large, options), 0x1p-7);
}

TEST(AutomaticScale, StaysAPowerOfTwoThatFp32CanInvert) {
  EXPECT_EQ(automatic_scale(1000, evidence(1, 0, 1000), {}), 512);
  const ScaleEvidence zeros{.histogram = {}, .grad_norm = 0, .may_grow = true};
  EXPECT_EQ(automatic_scale(1, zeros, {}), 2) << "nothing arrived";
  EXPECT_EQ(automatic_scale(0x1p126, zeros, {}), 0x1p126);
}

struct OneParameter {
  at::Tensor parameter = at::ones({8}).requires_grad_(true);
  torch::optim::SGD optimizer{{parameter}, torch::optim::SGDOptions(0)};

  void step(AutomaticLossScaler& scaler, double gradient) {
    parameter.mutable_grad().reset();
    scaler.scale((parameter * gradient).sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  }
};

TEST(AutomaticLossScaler, FollowsTheGradientsWithoutOverflowing) {
  OneParameter model;
  AutomaticLossScaler scaler({}, 2);
  model.step(scaler, 100);
  EXPECT_EQ(scaler.get_scale(), 16) << "65504 / (8 * 283)";
  for (int i = 0; i < 2; ++i) model.step(scaler, 0x1p-24);
  EXPECT_EQ(scaler.flushed_share(), 1);
  EXPECT_EQ(scaler.get_scale(), 1024);
  for (int i = 0; i < 2; ++i) model.step(scaler, 0x1p-24);
  EXPECT_EQ(scaler.flushed_share(), 0);
  EXPECT_EQ(scaler.get_scale(), 1024);
  model.step(scaler, INFINITY);
  EXPECT_EQ(scaler.get_scale(), 512);
}

}  // namespace
}  // namespace plimsoll::amp
