#include "plimsoll/format/codec.h"

#include <gtest/gtest.h>

#include <cmath>

namespace plimsoll::format {
namespace {

TEST(Codec, DispatchesToTheNamedFormat) {
  EXPECT_EQ(encode(Format::kFp32, 1.0f), 0x3f800000u);
  EXPECT_EQ(encode(Format::kFp16, 1.0f), 0x3c00u);
  EXPECT_EQ(encode(Format::kBf16, 1.0f), 0x3f80u);
  EXPECT_EQ(encode(Format::kE4m3, 1.0f), 0x38u);
  EXPECT_EQ(encode(Format::kE5m2, 1.0f), 0x3cu);
  EXPECT_EQ(encode(Format::kE2m1, 1.0f), 0x2u);
  EXPECT_EQ(encode(Format::kE8m0, 1.0f), 127u);
  for (const FormatInfo& facts : kFormats) {
    const Format format = *parse_format(facts.name);
    EXPECT_EQ(decode(format, encode(format, 1.0f)), 1.0f) << facts.name;
    EXPECT_EQ(decode(format, encode(format, facts.max_finite)), facts.max_finite) << facts.name;
    EXPECT_EQ(decode(format, encode(format, facts.min_subnormal)), facts.min_subnormal) << facts.name;
  }
}

TEST(Codec, HandsTheOverflowRuleOn) {
  EXPECT_EQ(encode(Format::kE4m3, 1e9f), 0x7eu);
  EXPECT_EQ(encode(Format::kE4m3, 1e9f, Overflow::kNonFinite), 0x7fu);
  EXPECT_EQ(encode(Format::kE5m2, 1e9f, Overflow::kNonFinite), 0x7cu);
}

TEST(FormatNames, ParseOnlyTheKnownOnes) {
  EXPECT_EQ(parse_format("e4m3"), Format::kE4m3);
  EXPECT_EQ(parse_format("bf16"), Format::kBf16);
  EXPECT_EQ(parse_format("E4M3"), std::nullopt);
  EXPECT_EQ(parse_format(""), std::nullopt);
}

TEST(FormatNames, KnowTheirStorage) {
  EXPECT_EQ(bytes(Format::kFp32), 4);
  EXPECT_EQ(bytes(Format::kBf16), 2);
  EXPECT_EQ(bytes(Format::kE5m2), 1);
  EXPECT_EQ(bytes(Format::kE2m1), 1);
  EXPECT_TRUE(is_fp8(Format::kE4m3));
  EXPECT_FALSE(is_fp8(Format::kE8m0));
}

}  // namespace
}  // namespace plimsoll::format
