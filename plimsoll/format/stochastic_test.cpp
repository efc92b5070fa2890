#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/code_table.h"
#include "plimsoll/format/e2m1.h"
#include "plimsoll/format/fp16.h"
#include "plimsoll/format/fp8.h"

namespace plimsoll::format {
namespace {

using testing::CodeTable;

// The rule in double, where distance and sum are exact.
uint32_t expected_code(const CodeTable& table, double magnitude, uint16_t random_bits) {
  const uint32_t lower = table.at_or_below(magnitude);
  if (lower == table.finite_codes()) return lower;
  const double fraction = (magnitude - table.value(lower)) / (table.value(lower + 1) - table.value(lower));
  return lower + (std::nearbyint(fraction * 65536) + random_bits >= 65536 ? 1 : 0);
}

template <class Float>
void expect_rule_on_random_inputs(const testing::Layout& layout) {
  const CodeTable table(layout);
  std::mt19937 generator(7);
  for (int i = 0; i < 300000; ++i) {
    const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(generator()) & 0x7fffffffu);
    if (!std::isfinite(magnitude)) continue;
    const auto random_bits = static_cast<uint16_t>(generator());
    uint32_t expected = expected_code(table, magnitude, random_bits);
    if (expected == table.finite_codes()) expected = Float::encode(3e38f);
    ASSERT_EQ(Float::encode_stochastic_16(magnitude, random_bits), expected) << magnitude << " " << random_bits;
  }
}

TEST(StochasticRounding, FollowsTheRuleOnRandomInputs) {
  expect_rule_on_random_inputs<E4m3>(testing::kE4m3Layout);
  expect_rule_on_random_inputs<E5m2>(testing::kE5m2Layout);
  expect_rule_on_random_inputs<Fp16>(testing::kFp16Layout);
}

TEST(StochasticRounding, TurnsExactlyAtTheFraction) {
  const CodeTable table(testing::kE4m3Layout);
  for (uint32_t code = 0; code + 1 < table.finite_codes(); ++code) {
    for (uint32_t sixteenth = 1; sixteenth < 16; ++sixteenth) {
      const double step = table.value(code + 1) - table.value(code);
      const auto x = static_cast<float>(table.value(code) + step * sixteenth / 16);
      const auto threshold = static_cast<uint16_t>(0x10000u - (sixteenth << 12));
      ASSERT_EQ(E4m3::encode_stochastic_16(x, threshold), code + 1);
      ASSERT_EQ(E4m3::encode_stochastic_16(x, static_cast<uint16_t>(threshold - 1)), code);
      ASSERT_EQ(E4m3::encode_stochastic_16(-x, threshold), code + 1 + 0x80u);
    }
  }
}

TEST(StochasticRounding, TinyValuesKeepTheirProbability) {
  // 2^-24 lies 2^-15 of the way from 0 to E4M3's 2^-9: two words of 2^16 lift it. 2^-26 is half a word, a tie.
  EXPECT_EQ(E4m3::encode_stochastic_16(0x1p-24f, 0xfffe), 1);
  EXPECT_EQ(E4m3::encode_stochastic_16(0x1p-24f, 0xfffd), 0);
  EXPECT_EQ(E4m3::encode_stochastic_16(0x1p-26f, 0xffff), 0);
  EXPECT_EQ(E4m3::encode_stochastic_16(-0x1p-149f, 0xffff), 0x80);
}

TEST(StochasticRounding, OverflowIsThatOfTheRoundedValue) {
  EXPECT_EQ(E4m3::encode_stochastic_16(449.0f, 0xffff, Overflow::kNonFinite), 0x7f);  // up, out of the range
  EXPECT_EQ(E4m3::encode_stochastic_16(449.0f, 0, Overflow::kNonFinite), 0x7e);
  EXPECT_EQ(E4m3::encode_stochastic_16(449.0f, 0xffff), 0x7e);
}

TEST(StochasticRounding, FollowsTheRuleInFourBits) {
  const CodeTable table(testing::kE2m1Layout);
  std::mt19937 generator(13);
  std::uniform_real_distribution<float> uniform(0.0f, 6.5f);
  const auto check = [&](float magnitude, uint16_t random_bits) {
    const uint32_t most = table.finite_codes() - 1;
    const uint32_t expected = magnitude < 6.0f ? expected_code(table, double{magnitude}, random_bits) : most;
    ASSERT_EQ(E2m1::encode_stochastic_16(magnitude, random_bits), expected) << magnitude << " " << random_bits;
    ASSERT_EQ(E2m1::encode_stochastic_16(-magnitude, random_bits), expected | 8u);
  };
  for (int i = 0; i < 200000; ++i) check(uniform(generator), static_cast<uint16_t>(generator()));
  for (uint32_t code = 0; code < table.finite_codes(); ++code) {
    for (const uint16_t word : {uint16_t{0}, uint16_t{0x8000}, uint16_t{0xffff}}) {
      const auto value = static_cast<float>(table.value(code));
      ASSERT_EQ(E2m1::encode_stochastic_16(value, word), code);  // what is representable never moves
      check(std::nextafter(value, 7.0f), word);
      if (value > 0) check(std::nextafter(value, 0.0f), word);
    }
  }
  EXPECT_EQ(E2m1::encode_stochastic_16(0x1p-19f, 0xffff), 0);  // below half of 2^-16 of the gap
  EXPECT_EQ(E2m1::encode_stochastic_16(0x1.8p-18f, 0xffff), 1);
}

TEST(StochasticRounding, MeanIsTheValue) {
  const float x = 1.03f;  // between 1 and 1.125
  std::mt19937 generator(11);
  constexpr int kDraws = 1 << 20;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i)
    sum += E4m3::decode(E4m3::encode_stochastic_16(x, static_cast<uint16_t>(generator())));
  const double p = (double{x} - 1.0) / 0.125;
  const double sigma = 0.125 * std::sqrt(p * (1 - p) / kDraws);
  EXPECT_NEAR(sum / kDraws, double{x}, 5 * sigma);
}

}  // namespace
}  // namespace plimsoll::format
