#include "plimsoll/format/e8m0.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace plimsoll::format {
namespace {

constexpr float kMax = 448.0f;  // of E4M3

static_assert(E8m0::from_amax(448.0f, kMax) == 127);

TEST(E8m0, GoldenBytesForE4m3) {
  EXPECT_EQ(E8m0::from_amax(448.0f, kMax), 127);
  EXPECT_EQ(E8m0::from_amax(449.0f, kMax), 128);
  EXPECT_EQ(E8m0::from_amax(256.0f, kMax), 127);
  EXPECT_EQ(E8m0::from_amax(1.0f, kMax), 119);
  EXPECT_EQ(E8m0::from_amax(0.875f, kMax), 118);
  EXPECT_EQ(E8m0::from_amax(0.8751f, kMax), 119);
  EXPECT_EQ(E8m0::from_amax(0.0f, kMax), 0);
}

TEST(E8m0, RoundingDownFollowsTheOcpText) {
  EXPECT_EQ(E8m0::from_amax(449.0f, kMax, ScaleRounding::kDown), 127);
  EXPECT_EQ(E8m0::from_amax(511.0f, kMax, ScaleRounding::kDown), 127);
  EXPECT_EQ(E8m0::from_amax(512.0f, kMax, ScaleRounding::kDown), 128);
  EXPECT_EQ(E8m0::from_amax(255.0f, kMax, ScaleRounding::kDown), 126);
  EXPECT_EQ(E8m0::from_amax(0.8751f, kMax, ScaleRounding::kDown), 118);
}

TEST(E8m0, UpIsTheSmallestScaleThatHoldsTheBlock) {
  for (const float limit : {448.0f, 57344.0f, 6.0f}) {
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += 9973) {
      const float amax = std::bit_cast<float>(bits);
      const int code = E8m0::from_amax(amax, limit);
      ASSERT_GE(std::ldexp(double{limit}, code - 127), double{amax});
      if (code > 0) {
        ASSERT_LT(std::ldexp(double{limit}, code - 128), double{amax});
      }
    }
  }
}

TEST(E8m0, DecodesEveryCodeAndItsInverse) {
  for (int code = 0; code < 255; ++code) {
    ASSERT_EQ(double{E8m0::decode(static_cast<uint8_t>(code))}, std::ldexp(1.0, code - 127));
    ASSERT_EQ(double{E8m0::decode_inverse(static_cast<uint8_t>(code))}, std::ldexp(1.0, 127 - code));
    ASSERT_EQ(E8m0::encode(E8m0::decode(static_cast<uint8_t>(code))), code);
  }
  EXPECT_TRUE(std::isnan(E8m0::decode(255)));
  EXPECT_TRUE(std::isnan(E8m0::decode_inverse(255)));
}

TEST(E8m0, EncodeRoundsAsAsked) {
  EXPECT_EQ(E8m0::encode(1.5f), 128);
  EXPECT_EQ(E8m0::encode(1.5f, ScaleRounding::kDown), 127);
  EXPECT_EQ(E8m0::encode(0x1p-149f), 0);
  EXPECT_EQ(E8m0::encode(std::numeric_limits<float>::max()), 254);
}

TEST(E8m0, NonFiniteAndNegativeAreNan) {
  EXPECT_EQ(E8m0::from_amax(std::numeric_limits<float>::infinity(), kMax), 255);
  EXPECT_EQ(E8m0::from_amax(std::numeric_limits<float>::quiet_NaN(), kMax), 255);
  EXPECT_EQ(E8m0::encode(std::numeric_limits<float>::quiet_NaN()), 255);
  EXPECT_EQ(E8m0::encode(-1.0f), 255);
}

}  // namespace
}  // namespace plimsoll::format
