// Weights of BF16 with a correction, and weights alone in BF16.
#include <gtest/gtest.h>

#include <cmath>
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

TEST(SplitWeights, SmallUpdatesAddUpWithoutMasters) {
  for (Weights weights : {Weights::kSplit, Weights::kAlone}) {
    constexpr int64_t kCount = 4096;
    std::vector<uint16_t> narrow(kCount, Bf16::encode(1.0f));
    std::vector<int8_t> correction(kCount);
    std::vector<float> grad(kCount, 1.0f), moment1(kCount), moment2(kCount);
    for (int64_t step = 1; step <= 200; ++step) {
      adamw({.narrow = narrow.data(),
             .correction = weights == Weights::kSplit ? correction.data() : nullptr,
             .grad = grad.data(),
             .moment1 = moment1.data(),
             .moment2 = moment2.data(),
             .seed = 5,
             .count = kCount,
             .lr = 1e-4,
             .weight_decay = 0,
             .step = step});
    }
    double mean = 0;
    for (size_t i = 0; i < narrow.size(); ++i) {
      const bool is_split = weights == Weights::kSplit;
      mean += double{is_split ? joined(narrow[i], correction[i]) : Bf16::decode(narrow[i])} / kCount;
    }
    // 200 steps of lr each, where half a unit of BF16 below 1 is 2^-9, 20 of them. Split, a step is off by half a code,
    // 2^-9 / 254; alone, a step has a variance of at most 2^-16 / 4 and the mean lies within 6 standard deviations.
    const double tolerance = weights == Weights::kSplit ? 200 * 0x1p-9 / 254 : 6 * std::sqrt(200 * 0x1p-18 / kCount);
    EXPECT_NEAR(mean, 0.98, tolerance);
  }
}

// Without a change to it, the largest magnitude that a step returns is that of the weight put together.
TEST(SplitWeights, ASplitWeightIsTheNearestToItsSum) {
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (uint32_t upper = 0; upper < 0x7f80; upper += 97) {
      for (int code = -127; code <= 127; ++code) {
        if (upper == 0 && code < 0) continue;
        uint16_t narrow = static_cast<uint16_t>(upper);
        int8_t correction = static_cast<int8_t>(code);
        float grad = 0, moment1 = 0, moment2 = 0;
        const float w = adamw({.narrow = &narrow,
                               .correction = &correction,
                               .grad = &grad,
                               .moment1 = &moment1,
                               .moment2 = &moment2,
                               .count = 1,
                               .lr = 0,
                               .weight_decay = 0});
        ASSERT_EQ(w, joined(static_cast<uint16_t>(upper), static_cast<int8_t>(code))) << upper << " " << code;
      }
    }
  }
}

// A split weight whose BF16 part somebody else has written may have a correction that belongs to another.
TEST(SplitWeights, ACorrectionOfAnotherWeightMovesItByHalfAnUlpAtMost) {
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (uint32_t upper = 0; upper < 0x10000; upper += 64) {
      std::vector<uint16_t> narrow;
      std::vector<int8_t> correction;
      for (uint32_t i = 0; i < 64; ++i) {
        narrow.push_back(static_cast<uint16_t>(upper + i));
        correction.push_back(i % 3 == 0 ? int8_t{-127} : i % 3 == 1 ? int8_t{127} : int8_t{5});
      }
      const std::vector<uint16_t> before = narrow;
      std::vector<float> zeros(64), moment1(64), moment2(64);
      adamw({.narrow = narrow.data(),
             .correction = correction.data(),
             .grad = zeros.data(),
             .moment1 = moment1.data(),
             .moment2 = moment2.data(),
             .count = 64,
             .lr = 0});
      for (size_t i = 0; i < 64; ++i) {
        const float then = Bf16::decode(before[i]), now = Bf16::decode(narrow[i]);
        if (std::isnan(then)) {
          EXPECT_TRUE(std::isnan(now));
        } else {
          EXPECT_LE(std::abs(int{narrow[i]} - int{before[i]}), 1) << before[i];
          EXPECT_EQ(std::signbit(now), std::signbit(then));
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
