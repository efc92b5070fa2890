#include "plimsoll/optim/schedule.h"

#include <gtest/gtest.h>

namespace plimsoll::optim {
namespace {

constexpr Schedule kSchedule{.peak_lr = 8e-4, .final_lr = 2e-4, .warmup_steps = 4, .total_steps = 16};

double cosine_lr(Schedule schedule, int64_t step) {
  schedule.decay = Decay::kCosine;
  return learning_rate(schedule, step);
}

double linear_lr(Schedule schedule, int64_t step) {
  schedule.decay = Decay::kLinear;
  return learning_rate(schedule, step);
}

// Each value is a few operations on doubles.
constexpr double kRounding = 4 * 0x1p-53 * 8e-4;

TEST(Schedule, WarmsUpInEqualSteps) {
  for (auto lr : {cosine_lr, linear_lr}) {
    EXPECT_NEAR(lr(kSchedule, 0), 2e-4, kRounding);
    EXPECT_NEAR(lr(kSchedule, 1), 4e-4, kRounding);
    EXPECT_NEAR(lr(kSchedule, 3), 8e-4, kRounding);
    EXPECT_NEAR(lr(kSchedule, 4), 8e-4, kRounding);
  }
}

TEST(Schedule, CosineGoldenValues) {
  EXPECT_NEAR(cosine_lr(kSchedule, 7), 2e-4 + 6e-4 * (1 + 0.70710678118654752440) / 2, kRounding);
  EXPECT_NEAR(cosine_lr(kSchedule, 8), 6.5e-4, kRounding);
  EXPECT_NEAR(cosine_lr(kSchedule, 10), 5e-4, kRounding);
  EXPECT_NEAR(cosine_lr(kSchedule, 12), 3.5e-4, kRounding);
}

TEST(Schedule, LinearGoldenValues) {
  EXPECT_NEAR(linear_lr(kSchedule, 7), 6.5e-4, kRounding);
  EXPECT_NEAR(linear_lr(kSchedule, 10), 5e-4, kRounding);
  EXPECT_NEAR(linear_lr(kSchedule, 15), 2.5e-4, kRounding);
}

TEST(Schedule, StaysAtTheFinalRate) {
  for (auto lr : {cosine_lr, linear_lr}) {
    EXPECT_NEAR(lr(kSchedule, 16), 2e-4, kRounding);
    EXPECT_NEAR(lr(kSchedule, 1000000), 2e-4, kRounding);
  }
}

TEST(Schedule, WorksWithoutWarmUpAndWithNothingElse) {
  for (auto lr : {cosine_lr, linear_lr}) {
    EXPECT_EQ(lr({.peak_lr = 1, .total_steps = 10}, 0), 1);
    EXPECT_EQ(lr({.peak_lr = 1, .warmup_steps = 10, .total_steps = 10}, 9), 1);
    EXPECT_EQ(lr({.peak_lr = 1, .final_lr = 0.5, .warmup_steps = 10, .total_steps = 10}, 11), 0.5);
  }
}

}  // namespace
}  // namespace plimsoll::optim
