// Moments in 8 bits: what codes stand for, what many of them are in the mean, and what does not fit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/narrow_states_testing.h"
#include "plimsoll/kernels/testing.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;
using runtime::Isa;

// The companding as one reads it, in double: FP32 rounds the quotient and two products with it.
TEST(Moments8Bit, EachCodeStandsForWhatTheRuleSays) {
  for (int code = -127; code <= 127; ++code) {
    const double y = code / 127.0, x = y / (2 - std::fabs(y)), scale = double{Fp16::decode(0x2e66)};
    const double got = double{expanded1(static_cast<int8_t>(code), static_cast<float>(scale))};
    EXPECT_NEAR(got, x * scale, 2 * 0x1p-24 * std::fabs(x * scale));
  }
}

// A constant gradient g: the second moment goes to g^2, through changes of 0.1 %, and the mean of many is unbiased.
TEST(Moments8Bit, AnEightBitSecondMomentFollowsSmallChanges) {
  constexpr int64_t kCount = 4096, kSteps = 1000;
  std::vector<float> master(kCount, 0.0f), grad(kCount, 0.5f);
  for (size_t i = 0; i < grad.size(); i += 32) grad[i] = 1;  // the largest of each group
  std::vector<int8_t> moment1(kCount);
  std::vector<uint8_t> moment2(kCount);
  std::vector<uint16_t> scale1(kCount / 32), scale2(kCount / 32);
  for (int64_t step = 1; step <= kSteps; ++step) {
    adamw({.master = master.data(),
           .grad = grad.data(),
           .states = StateKind::k8Bit,
           .moment1 = moment1.data(),
           .moment2 = moment2.data(),
           .scale1 = scale1.data(),
           .scale2 = scale2.data(),
           .seed = 3,
           .count = kCount,
           .step = step});
  }
  double mean = 0, count = 0;
  for (size_t i = 0; i < moment2.size(); ++i) {
    if (i % 32 == 0) continue;
    mean += double{expanded2(moment2[i], Fp16::decode(scale2[i / 32]))};
    ++count;
  }
  mean /= count;
  const double exact = 0.25 * (1 - std::pow(0.999, kSteps));
  // A rounding has a variance of at most (v_up - v_down)^2 / 4 with v_up - v_down <= (2 * 255 - 1) / 255^2, each step
  // keeps 0.999 of what is there, and the mean of independent ones lies within 6 standard deviations. Each step's FP32
  // arithmetic moves v by at most 12 units of 2^-24 of itself, and 1000 of them add up.
  const double variance = std::pow(509.0 / (255 * 255), 2) / 4 / (1 - 0.999 * 0.999);
  EXPECT_NEAR(mean, exact, 6 * std::sqrt(variance / count) + 1000 * 12 * 0x1p-24 * exact);
}

// Means over a constant m: y is exact, and so is the largest of a group.
TEST(Moments8Bit, TheMeanOfFirstMomentCodesIsExact) {
  constexpr int64_t kCount = 1 << 16;
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (float x : {0.0f, 1e-4f, 0.01f, 0.3f, 0.9f}) {
      std::vector<float> master(kCount), grad(kCount, -x);
      for (size_t i = 0; i < grad.size(); i += 32) grad[i] = -1;
      std::vector<int8_t> moment1(kCount);
      std::vector<uint8_t> moment2(kCount);
      std::vector<uint16_t> scale1(kCount / 32), scale2(kCount / 32);
      adamw({.master = master.data(),
             .grad = grad.data(),
             .states = StateKind::k8Bit,
             .moment1 = moment1.data(),
             .moment2 = moment2.data(),
             .scale1 = scale1.data(),
             .scale2 = scale2.data(),
             .seed = 11,
             .count = kCount,
             .lr = 0,
             .beta1 = 0});
      double mean = 0, count = 0;
      for (size_t i = 0; i < moment1.size(); ++i) {
        if (i % 32 == 0) {
          ASSERT_EQ(moment1[i], -127);
        } else {
          mean += moment1[i];
          ++count;
        }
      }
      // A rounding has a variance of at most 1 / 4, a mean of independent ones lies within 6 deviations; FP32 as above.
      const double y = -254 * double{x} / (1 + double{x});
      EXPECT_NEAR(mean / count, y, x == 0 ? 0 : 6 * 0.5 / std::sqrt(count) + 3 * 0x1p-16) << x;
    }
  }
}

TEST(Moments8Bit, WhatIsNotFiniteIsNeverStoredAsANumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (Weights weights : kWeights) {
        Tensor tensor(weights, StateKind::k8Bit, 97);
        tensor.grad[70] = bad;
        EXPECT_FALSE(std::isfinite(adamw(tensor.args())));
        EXPECT_TRUE(std::isnan(Fp16::decode(tensor.scale1[2])) && std::isnan(Fp16::decode(tensor.scale2[2])));
        EXPECT_TRUE(std::isfinite(Fp16::decode(tensor.scale1[1])) && std::isfinite(Fp16::decode(tensor.scale2[3])));
        const auto weight = [&](size_t i) {
          return weights == Weights::kMaster ? tensor.master[i] : Bf16::decode(tensor.narrow[i]);
        };
        EXPECT_TRUE(std::isnan(weight(70)));
        EXPECT_TRUE(weights != Weights::kSplit || tensor.correction[70] == 0);
        EXPECT_TRUE(std::isfinite(weight(69)));
        adamw(tensor.args());
        EXPECT_TRUE(std::isnan(weight(69))) << "its group's states are";
        EXPECT_TRUE(std::isfinite(weight(63)) && std::isfinite(weight(96)));
      }
    }
  }
}

TEST(Moments8Bit, MagnitudesAboveFp16AreItsLargest) {
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    Tensor tensor(Weights::kMaster, StateKind::k8Bit, 64);
    tensor.grad[3] = -1e9f;
    EXPECT_TRUE(std::isfinite(adamw(tensor.args())));
    EXPECT_EQ(Fp16::decode(tensor.scale1[0]), 65504.0f);
    EXPECT_EQ(tensor.codes1[3], -127);
    EXPECT_EQ(tensor.codes2[3], 255);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
