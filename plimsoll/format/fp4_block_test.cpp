#include "plimsoll/format/fp4_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/code_table.h"

namespace plimsoll::format::fp4_block_test {
namespace {

using testing::CodeTable;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

static_assert(Nvfp4::block_scale(2.0f, Nvfp4::encode_scale(2.0f, Fp4Scaling::kNvfp4)) == 0x7e);
static_assert(E2m1::pair(0x3, 0xa) == 0xa3 && E2m1::even_of(0xa3) == 0x3 && E2m1::odd_of(0xa3) == 0xa);

// x rounded to FP32 once. Quotients and products of two FP32 numbers, computed in double, round to FP32 as the exact
// ones do: 53 >= 2 * 24 + 2 (Figueroa, "When is double rounding innocuous?", 1995).
float fp32(double x) { return static_cast<float>(x); }

TEST(E2m1Pair, HoldsEveryTwoCodes) {
  for (int even = 0; even < 16; ++even) {
    for (int odd = 0; odd < 16; ++odd) {
      const uint8_t byte = E2m1::pair(static_cast<uint8_t>(even), static_cast<uint8_t>(odd));
      ASSERT_EQ(byte, even + 16 * odd);
      ASSERT_EQ(E2m1::even_of(byte), even);
      ASSERT_EQ(E2m1::odd_of(byte), odd);
    }
  }
  EXPECT_EQ(E2m1::bytes(0), 0);
  EXPECT_EQ(E2m1::bytes(5), 3);
  EXPECT_EQ(E2m1::bytes(6), 3);
}

TEST(Fp4Block, EveryCodeTimesEveryE4m3ScaleIsExactInBf16) {
  const CodeTable codes(testing::kE2m1Layout), scales(testing::kE4m3Layout);
  for (uint32_t scale = 0; scale < scales.finite_codes(); ++scale) {
    for (uint32_t code = 0; code < codes.finite_codes(); ++code) {
      const double exact = codes.value(code) * scales.value(scale);
      const float product = E2m1::decode(static_cast<uint8_t>(code)) * E4m3::decode(static_cast<uint8_t>(scale));
      ASSERT_EQ(double{product}, exact);
      ASSERT_EQ(double{Bf16::decode(Bf16::encode(product))}, exact);
    }
  }
}

TEST(Fp4Block, BlocksAndScalesAreThoseOfTheirFormats) {
  EXPECT_EQ(fp4_block(Fp4Scaling::kNvfp4), 16);
  EXPECT_EQ(fp4_block(Fp4Scaling::kFourOverSix), 16);
  EXPECT_EQ(fp4_block(Fp4Scaling::kMsEden), 16);
  EXPECT_EQ(fp4_block(Fp4Scaling::kMxfp4), 32);
  EXPECT_EQ(fp4_block(Fp4Scaling::kMxfp4Floor), 32);
  for (int code = 0; code < 0x7f; ++code) {
    ASSERT_EQ(fp4_decode_scale(Fp4Scaling::kNvfp4, static_cast<uint8_t>(code)),
              E4m3::decode(static_cast<uint8_t>(code)));
    ASSERT_EQ(fp4_decode_scale(Fp4Scaling::kMxfp4, static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127));
  }
}

// Powers of two are exact; the rest draws many mantissas.
template <class Check>
void over_amaxes(Check check) {
  for (int exponent = -149; exponent < 128; ++exponent) check(std::ldexp(1.0f, exponent));
  std::mt19937 generator(3);
  for (int i = 0; i < 100000; ++i) {
    const float amax = std::bit_cast<float>(static_cast<uint32_t>(generator()) & 0x7fffffffu);
    if (std::isfinite(amax) && amax > 0) check(amax);
  }
}

TEST(Nvfp4, EncodeScaleFollowsTheDefinition) {
  over_amaxes([](float amax) {
    for (const auto& [scaling, largest] :
         {std::pair{Fp4Scaling::kNvfp4, 2688.0}, std::pair{Fp4Scaling::kFourOverSix, 1536.0},
          std::pair{Fp4Scaling::kMsEden, double{fp32(double{255.99f} * double{fp32(96 / 15.81)})}}}) {
      const double exact = largest / double{amax};
      const float rounded = exact >= double{FLT_MAX} ? FLT_MAX : fp32(exact);
      ASSERT_EQ(Nvfp4::encode_scale(amax, scaling), rounded) << amax;
    }
  });
  EXPECT_EQ(Nvfp4::encode_scale(0.0f, Fp4Scaling::kNvfp4), 1.0f);
  EXPECT_TRUE(std::isnan(Nvfp4::encode_scale(kInf, Fp4Scaling::kNvfp4)));
  EXPECT_TRUE(std::isnan(Nvfp4::encode_scale(kNan, Fp4Scaling::kNvfp4)));
}

TEST(Nvfp4, BlockScaleIsTheNearestE4m3) {
  const CodeTable table(testing::kE4m3Layout);
  std::mt19937 generator(5);
  std::uniform_real_distribution<float> share(0.0f, 1.0f);
  over_amaxes([&](float amax) {
    const float encode_scale = Nvfp4::encode_scale(amax, Fp4Scaling::kNvfp4), block = amax * share(generator);
    for (const float target : {6.0f, 4.0f}) {
      const float step = fp32(double{encode_scale} / double{target}), scaled = fp32(double{block} * double{step});
      const uint32_t nearest = table.nearest(scaled);
      const uint32_t expected = nearest == table.finite_codes() ? nearest - 1 : nearest;
      ASSERT_EQ(Nvfp4::block_scale(block, encode_scale, target), expected) << block << " of " << amax;
    }
  });
  EXPECT_EQ(Nvfp4::block_scale(kInf, 1.0f), 0x7f);
  EXPECT_EQ(Nvfp4::block_scale(kNan, 1.0f), 0x7f);
  EXPECT_EQ(Nvfp4::block_scale(3.0f, kNan), 0x7f);
}

TEST(MsEden, TheLargestScaleLeavesRoomForItsCorrection) {
  over_amaxes([](float amax) {
    const float encode_scale = Nvfp4::encode_scale(amax, Fp4Scaling::kMsEden);
    const uint8_t scale = Nvfp4::block_scale(amax, encode_scale, Nvfp4::target(Fp4Scaling::kMsEden));
    ASSERT_LE(E4m3::decode(scale), 256.0f) << amax;
    ASSERT_LE(E4m3::decode(MsEden::stored_scale(scale, 1.25f, 0xffff)), 320.0f) << amax;
  });
}

TEST(MsEden, ScalesAreCorrectedToTheNeighboursOfTheProduct) {
  const CodeTable table(testing::kE4m3Layout);
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> share(0.7f, 1.8f);
  for (uint32_t code = 0; code < table.finite_codes(); ++code) {
    for (int i = 0; i < 1000; ++i) {
      const float c = share(generator);
      const double product = fp32(table.value(code) * double{c});
      const auto random = static_cast<uint16_t>(generator());
      const uint8_t stored = MsEden::stored_scale(static_cast<uint8_t>(code), c, random);
      ASSERT_LT(stored, table.finite_codes());
      if (product >= 448) {
        ASSERT_EQ(stored, 0x7e);
        continue;
      }
      uint32_t below = 0;
      while (table.value(below + 1) <= product) ++below;
      const double fraction = (product - table.value(below)) / (table.value(below + 1) - table.value(below));
      const double exact = fraction * 0x1p16 + random;  // up from 2^16 on; the fraction is rounded to a 2^-16th
      if (std::fabs(exact - 0x1p16) > 0.5) {
        ASSERT_EQ(stored, below + (exact > 0x1p16 ? 1 : 0)) << code << " " << c;
      }
      ASSERT_EQ(MsEden::nearest_scale(static_cast<uint8_t>(code), c), table.nearest(static_cast<float>(product)));
    }
  }
  EXPECT_EQ(MsEden::stored_scale(0x7f, 1.0f, 0), 0x7f);
  EXPECT_EQ(MsEden::correction(3.0f, 2.0f), 1.5f);
  for (const float products : {0.0f, kInf, kNan}) EXPECT_EQ(MsEden::correction(1.0f, products), 1.0f);
}

TEST(Nvfp4, FactorDividesByEveryScale) {
  const CodeTable table(testing::kE4m3Layout);
  for (const float encode_scale : {1.0f, 2688.0f, 0x1.8p-100f, 0x1.23456p90f, FLT_MAX}) {
    EXPECT_EQ(Nvfp4::factor(encode_scale, 0), FLT_MAX);
    for (uint32_t code = 1; code < table.finite_codes(); ++code) {
      const double exact = double{encode_scale} / table.value(code);
      const float expected = exact >= double{FLT_MAX} ? FLT_MAX : fp32(exact);
      ASSERT_EQ(Nvfp4::factor(encode_scale, static_cast<uint8_t>(code)), expected);
    }
  }
}

TEST(Mxfp4, ScalesFollowBothRulesByTheirDefinition) {
  over_amaxes([](float amax) {
    // floor(log2(amax)) - 2, and the ceiling of log2(amax / 6), both held to -127 .. 127.
    const int floor_exponent = std::ilogb(amax) - 2;
    int up = -127;
    while (std::ldexp(6.0, up) < double{amax}) ++up;
    const int down = floor_exponent < -127 ? -127 : floor_exponent;
    ASSERT_EQ(Mxfp4::block_scale(amax, Fp4Scaling::kMxfp4), up + 127) << amax;
    ASSERT_EQ(Mxfp4::block_scale(amax, Fp4Scaling::kMxfp4Floor), down + 127) << amax;
  });
  EXPECT_EQ(Mxfp4::block_scale(0.0f, Fp4Scaling::kMxfp4), 0);
  EXPECT_EQ(Mxfp4::block_scale(kInf, Fp4Scaling::kMxfp4), 255);
  EXPECT_EQ(Mxfp4::block_scale(kNan, Fp4Scaling::kMxfp4Floor), 255);
}

}  // namespace
}  // namespace plimsoll::format::fp4_block_test
