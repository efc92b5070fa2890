#include "plimsoll/watch/counts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/format/fp16.h"

namespace plimsoll::watch {
namespace {

using format::Format;

TEST(Counts, AgreeWithWhatTheEncoderDoes) {
  std::vector<float> values;
  for (uint32_t bits = 0x32000000; bits < 0x48000000; bits += 0x1235) {  // 7e-9 to 131072
    values.push_back(std::bit_cast<float>(bits));
  }
  for (const float edge : {65519.0f, 65520.0f, 0x1p-25f, 0x1.002p-25f, 0x1p-14f}) values.push_back(-edge);
  Counts expected{.elements = static_cast<int64_t>(values.size())};
  for (const float value : values) {
    const float coded = std::abs(format::Fp16::decode(format::Fp16::encode(value)));
    expected.overflowed += std::isinf(coded);
    expected.flushed += coded == 0;
    expected.subnormal += coded > 0 && std::abs(value) < 0x1p-14f;
  }
  const Counts counts = count(values, Format::kFp16);
  EXPECT_EQ(counts.elements, expected.elements);
  EXPECT_EQ(counts.overflowed, expected.overflowed);
  EXPECT_EQ(counts.flushed, expected.flushed);
  EXPECT_EQ(counts.subnormal, expected.subnormal);
  EXPECT_GT(counts.overflowed * counts.flushed * counts.subnormal, 0);
}

TEST(Counts, NeitherZerosNorNonFiniteValuesAreLost) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0, inf, std::nanf(""), 1};
  const Counts counts = count(values, Format::kE4m3);
  EXPECT_EQ(counts.elements, 4);
  EXPECT_EQ(counts.overflowed + counts.flushed + counts.subnormal, 0);
  EXPECT_EQ(counts.mass, 1);
}

TEST(Counts, MassIsOfTheScaledValues) {
  const std::vector<float> values = {0x1p-8f, 0.5f};
  const Counts counts = count(values, Format::kE4m3, 0.5f);  // 2^-9 is E4M3's smallest
  EXPECT_EQ(counts.subnormal, 1);
  EXPECT_EQ(counts.underflow_share(), 0.5);
  EXPECT_EQ(counts.underflow_mass_share(), 0x1p-9 / (0.25 + 0x1p-9));
}

TEST(Counts, AreWorthItNearTheEndsOfTheFormat) {
  EXPECT_TRUE(worth_counting(20000, Format::kFp16));
  EXPECT_FALSE(worth_counting(10000, Format::kFp16));
  EXPECT_FALSE(worth_counting(1, Format::kFp16));
  EXPECT_FALSE(worth_counting(0, Format::kFp16));
  EXPECT_FALSE(worth_counting(3e38f, Format::kFp32));
  EXPECT_TRUE(worth_counting(0.01f, Format::kFp16));
  EXPECT_TRUE(worth_counting(std::numeric_limits<float>::infinity(), Format::kFp16));
  EXPECT_TRUE(worth_counting(std::nanf(""), Format::kFp16));
}

}  // namespace
}  // namespace plimsoll::watch
