#include "plimsoll/kernels/dropout/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using runtime::RoundingWords;
using testing::Array;

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 4095, 4097, 70001};

TEST(Dropout, WhatStaysHasItsBitsAndTheRestIsZeroOnEveryIsaAndThreadCount) {
  const RoundingWords words{.seed = 7, .step = 3};
  for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (const int64_t count : kCounts) {
      const Array x(format, testing::sample(count, 1));
      for (const runtime::Isa isa : testing::isas_present()) {
        for (const int threads : {1, 3}) {
          const runtime::ScopedIsa scoped(isa);
          const testing::ScopedThreads scoped_threads(threads);
          Array y(format, count);
          dropout(
              {.x = x.data(), .format = format, .y = y.data(), .count = count, .words = words, .probability = 0.25});
          for (int64_t i = 0; i < count; ++i) {
            const bool dropped = words.word(static_cast<uint64_t>(i)) < 0x40000000u;
            ASSERT_EQ(y.code(i), dropped ? 0 : x.code(i)) << i << " of " << count;
          }
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

TEST(Dropout, AddsWhatStaysWithOneRounding) {
  const RoundingWords words{.seed = 1, .step = 0};
  for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    const int64_t count = 1000;
    const Array x(format, testing::sample(count, 1)), before(format, testing::sample(count, 2));
    for (const runtime::Isa isa : testing::isas_present()) {
      const runtime::ScopedIsa scoped(isa);
      Array y = before;
      dropout({.x = x.data(),
               .format = format,
               .y = y.data(),
               .accumulate = true,
               .count = count,
               .words = words,
               .probability = 0.5});
      for (int64_t i = 0; i < count; ++i) {
        const bool dropped = words.word(static_cast<uint64_t>(i)) < 0x80000000u;
        ASSERT_EQ(y.at(i), format::decode(format, format::encode(format, before.at(i) + (dropped ? 0.0f : x.at(i)))));
      }
    }
  }
}

TEST(Dropout, WhatBecomesZeroMayBeNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(64, infinity);
  const RoundingWords words{.seed = 2, .step = 0};
  dropout({.x = values.data(), .y = values.data(), .count = 64, .words = words, .probability = 0.5});
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(values[i], words.word(i) < 0x80000000u ? 0.0f : infinity);
}

// The number of zeros is binomial: five standard deviations, and as much for those of two steps in the same places.
TEST(Dropout, DropsItsShareAndAnotherStepDropsOthers) {
  const int64_t count = 1 << 20;
  const double p = 0.05, n = static_cast<double>(count);
  const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
  std::vector<float> first(ones), second(ones);
  dropout({.x = ones.data(), .y = first.data(), .count = count, .words = {.seed = 9, .step = 0}, .probability = p});
  dropout({.x = ones.data(), .y = second.data(), .count = count, .words = {.seed = 9, .step = 1}, .probability = p});
  double zeros = 0, both = 0;
  for (size_t i = 0; i < ones.size(); ++i) {
    zeros += first[i] == 0;
    both += first[i] == 0 && second[i] == 0;
  }
  EXPECT_NEAR(zeros, n * p, 5 * std::sqrt(n * p * (1 - p)));
  EXPECT_NEAR(both, n * p * p, 5 * std::sqrt(n * p * p * (1 - p * p)));
}

}  // namespace
}  // namespace plimsoll::kernels
