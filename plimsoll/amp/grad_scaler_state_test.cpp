// The scaler's state, and scales of several optimizers.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/amp/scaled_model.h"

namespace plimsoll::amp {
namespace {

using namespace scaler_test;

// Each trains as it would under a scaler of its own.
TEST(GradScaler, OptimizersThatItListsHaveAScaleEach) {
  Model ours[] = {Model(1), Model(2)}, theirs[] = {Model(1), Model(2)};
  const GradScalerOptions options{.growth_interval = 3, .hysteresis = 2};
  GradScalerOptions each = options;
  each.optimizers = {&ours[0].optimizer, &ours[1].optimizer};
  GradScaler scaler(each), alone[] = {GradScaler(options), GradScaler(options)};
  std::mt19937 random(5);
  for (int step = 0; step < 200; ++step) {
    for (size_t i = 0; i < 2; ++i) {
      if (i == 1 && step % 3 == 0) continue;  // is not stepped
      const std::vector<at::Tensor> slope = slopes(random);
      ours[i].optimizer.zero_grad();
      theirs[i].optimizer.zero_grad();
      scaler.scale(ours[i].loss(slope), ours[i].optimizer).backward();
      alone[i].scale(theirs[i].loss(slope)).backward();
      if (step % 2 == 0) scaler.unscale_(ours[i].optimizer);
      scaler.step(ours[i].optimizer);
      alone[i].step(theirs[i].optimizer);
      alone[i].update();
    }
    scaler.update();
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(scaler.get_scale(ours[i].optimizer), alone[i].get_scale()) << step;
      for (size_t p = 0; p < 2; ++p) ASSERT_TRUE(at::equal(ours[i].parameters[p], theirs[i].parameters[p])) << step;
    }
  }
  EXPECT_NE(alone[0].get_scale(), alone[1].get_scale());
  EXPECT_EQ(scaler.get_scale(), std::min(alone[0].get_scale(), alone[1].get_scale()));
}

TEST(GradScaler, OneOfTwoThatOverflowsBacksOffAlone) {
  Model first(1), second(2);
  GradScaler scaler({.optimizers = {&first.optimizer, &second.optimizer}});
  first.run(scaler, kInf);
  second.run(scaler);
  for (Model* model : {&first, &second}) scaler.step(model->optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(first.optimizer), 32768);
  EXPECT_EQ(scaler.get_scale(second.optimizer), 65536);
  GradScaler other({.optimizers = {&first.optimizer, &second.optimizer}});
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.get_scale(first.optimizer), 32768);
  EXPECT_EQ(other.state_dict(), scaler.state_dict());
  expect_error([&] { GradScaler({.optimizers = {&first.optimizer}}).load_state_dict(scaler.state_dict()); },
               "expected 1 scales in the state, got 2");
  expect_error([&] { other.load_state_dict(GradScaler().state_dict()); }, "expected scale.0 in the state, got none");
  expect_error([&] { scaler.scale(at::ones({})); }, "expected the optimizer of this loss");
  Model third(3);
  expect_error([&] { scaler.scale(at::ones({}), third.optimizer); }, "expected one of its optimizers");
  expect_error([&] { scaler.step(third.optimizer); }, "expected one of its optimizers");
}

TEST(GradScaler, ItsStateGoesOn) {
  GradScaler scaler({.init_scale = 512, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  Model model(1);
  for (int step = 0; step < 2; ++step) model.step(scaler);
  GradScaler other;
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.state_dict(), scaler.state_dict());
  EXPECT_EQ(other.growth_tracker(), 2);
  const auto expect_refused = [&](const std::map<std::string, double>& state, const char* message) {
    expect_error([&] { other.load_state_dict(state); }, message);
  };
  const auto with = [&](const char* key, double value) {
    std::map<std::string, double> state = scaler.state_dict();
    state[key] = value;
    return state;
  };
  expect_refused(GradScaler({.enabled = false}).state_dict(), "as a disabled scaler saves it");
  expect_refused(with("scale", -1), "that FP32 holds, got -1");
  expect_refused({{"scale", 2.0}}, "expected _growth_tracker in the state");
  expect_refused(with("_overflows", -1), "expected a count _overflows in the state, got -1");
  expect_refused(with("_growth_tracker", std::nan("")), "expected a count _growth_tracker in the state, got nan");
  EXPECT_EQ(other.get_scale(), 512);
}

TEST(GradScaler, ItsStateKeepsTheHysteresisAndThatOfOneWithoutLoads) {
  GradScaler scaler({.hysteresis = 3});
  Model model(1);
  for (int step = 0; step < 2; ++step) EXPECT_EQ(model.step(scaler, kInf), 65536);
  GradScaler other;
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.state_dict(), scaler.state_dict());
  EXPECT_EQ(model.step(other, kInf), 32768) << "the third";
  scaler.load_state_dict(GradScaler().state_dict());
  EXPECT_EQ(scaler.options().hysteresis, 3);
  EXPECT_EQ(model.step(scaler, kInf), 65536) << "the first";
  expect_error([] { GradScaler({.hysteresis = 0}); }, "expected hysteresis > 0, got 0");
}

}  // namespace
}  // namespace plimsoll::amp
