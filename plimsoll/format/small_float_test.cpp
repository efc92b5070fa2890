#include "plimsoll/format/small_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/code_table.h"
#include "plimsoll/format/e2m1.h"
#include "plimsoll/format/fp16.h"
#include "plimsoll/format/fp8.h"

namespace plimsoll::format {
namespace {

using testing::CodeTable;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Encoding and decoding are constant expressions.
static_assert(E4m3::encode(448.0f) == 0x7e && E4m3::encode(-1.0f) == 0xb8 && E4m3::decode(0x08) == 0x1p-6f);
static_assert(E5m2::encode(57344.0f) == 0x7b && E5m2::encode(kInf) == 0x7c && E5m2::decode(0x01) == 0x1p-16f);
static_assert(Fp16::encode(65504.0f) == 0x7bff && Fp16::encode(65520.0f) == 0x7c00 && Fp16::decode(0x3c00) == 1.0f);
static_assert(Bf16::encode(1.0f) == 0x3f80 && Bf16::decode(0x0001) == 0x1p-133f);
static_assert(E2m1::encode(6.0f) == 0x7 && E2m1::encode(-0.5f) == 0x9 && E2m1::decode(0x3) == 1.5f);
static_assert(E4m3::encode_stochastic_16(1.0625f, 0x8000) == 0x39);
static_assert(E4m3::encode_stochastic_16(1.0625f, 0x7fff) == 0x38);

template <class Type, const testing::Layout& kLayoutOf, uint32_t kOverflowSaturate, uint32_t kOverflowNonFinite,
          uint32_t kInfSaturate>
struct Case {
  using Float = Type;
  static constexpr const testing::Layout& kLayout = kLayoutOf;
  static constexpr uint32_t kSaturated = kOverflowSaturate, kNonFinite = kOverflowNonFinite, kOfInf = kInfSaturate;
};
using Cases = ::testing::Types<
    Case<E4m3, testing::kE4m3Layout, 0x7e, 0x7f, 0x7e>, Case<E5m2, testing::kE5m2Layout, 0x7b, 0x7c, 0x7c>,
    Case<E2m1, testing::kE2m1Layout, 0x7, 0x7, 0x7>, Case<Fp16, testing::kFp16Layout, 0x7c00, 0x7c00, 0x7c00>,
    Case<Bf16, testing::kBf16Layout, 0x7f80, 0x7f80, 0x7f80>>;

template <class T>
class SmallFloatTest : public ::testing::Test {
 protected:
  const CodeTable table_{T::kLayout};
  static constexpr uint32_t kSign = 1u << (T::kLayout.exponent_bits + T::kLayout.mantissa_bits);

  // magnitude >= 0, finite; expected from the oracle.
  void expect_code(float magnitude, uint32_t expected) {
    const bool overflows = expected == table_.finite_codes();
    const uint32_t saturated = overflows ? T::kSaturated : expected;
    const uint32_t non_finite = overflows ? T::kNonFinite : expected;
    ASSERT_EQ(T::Float::encode(magnitude), saturated) << magnitude;
    ASSERT_EQ(T::Float::encode(-magnitude), saturated | kSign) << -magnitude;
    ASSERT_EQ(T::Float::encode(magnitude, Overflow::kNonFinite), non_finite) << magnitude;
    ASSERT_EQ(T::Float::encode(-magnitude, Overflow::kNonFinite), non_finite | kSign) << -magnitude;
  }
  void expect_nearest(float magnitude) { expect_code(magnitude, table_.nearest(magnitude)); }
};
TYPED_TEST_SUITE(SmallFloatTest, Cases);

TYPED_TEST(SmallFloatTest, DecodesEveryFiniteCodeToItsValue) {
  using Float = typename TypeParam::Float;
  for (uint32_t code = 0; code < this->table_.finite_codes(); ++code) {
    const auto negative = static_cast<typename Float::Code>(code | this->kSign);
    ASSERT_EQ(double{Float::decode(static_cast<typename Float::Code>(code))}, this->table_.value(code));
    ASSERT_EQ(double{Float::decode(negative)}, -this->table_.value(code));
    ASSERT_TRUE(std::signbit(Float::decode(negative)));
  }
}

TYPED_TEST(SmallFloatTest, EveryCodeThatIsNotNanSurvivesARoundTrip) {
  using Float = typename TypeParam::Float;
  for (uint32_t code = 0; code < 2 * this->kSign; ++code) {
    const float value = Float::decode(static_cast<typename Float::Code>(code));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Float::decode(Float::encode(value)))) << code;
    } else {
      ASSERT_EQ(Float::encode(value), code);
      ASSERT_EQ(Float::encode_stochastic_16(value, 0), code);
      ASSERT_EQ(Float::encode_stochastic_16(value, 0xffff), code);
    }
  }
}

TYPED_TEST(SmallFloatTest, RoundsEveryMidpointAndItsNeighbours) {
  for (uint32_t code = 0; code < this->table_.finite_codes(); ++code) {
    const double middle = (this->table_.value(code) + this->table_.value(code + 1)) / 2;
    const auto input = static_cast<float>(middle);
    ASSERT_EQ(double{input}, middle);
    this->expect_nearest(std::nextafter(input, 0.0f));
    this->expect_nearest(input);
    this->expect_nearest(std::nextafter(input, kInf));
  }
}

TYPED_TEST(SmallFloatTest, RoundsADenseSweepOfFp32) {
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 251) this->expect_nearest(std::bit_cast<float>(bits));
}

TYPED_TEST(SmallFloatTest, RoundsEveryFp16AndBf16Input) {
  for (uint32_t code = 0; code < 0x8000u; ++code) {
    const float fp16 = Fp16::decode(static_cast<uint16_t>(code)), bf16 = Bf16::decode(static_cast<uint16_t>(code));
    if (std::isfinite(fp16)) this->expect_nearest(fp16);
    if (std::isfinite(bf16)) this->expect_nearest(bf16);
  }
}

TYPED_TEST(SmallFloatTest, InfBecomesInfOrTheLargestCode) {
  using Float = typename TypeParam::Float;
  EXPECT_EQ(Float::encode(kInf), TypeParam::kOfInf);
  EXPECT_EQ(Float::encode(-kInf), TypeParam::kOfInf | this->kSign);
  EXPECT_EQ(Float::encode(kInf, Overflow::kNonFinite), TypeParam::kNonFinite);
  EXPECT_EQ(Float::encode_stochastic_16(kInf, 5), TypeParam::kOfInf);
}

TYPED_TEST(SmallFloatTest, NanStaysNanWithItsSign) {
  using Float = typename TypeParam::Float;
  for (uint32_t bits = 0x7f800001u; bits < 0x80000000u; bits += 4093) {
    const auto code = Float::encode(std::bit_cast<float>(bits));
    const auto negative = Float::encode(std::bit_cast<float>(bits | 0x80000000u));
    ASSERT_EQ(code & this->kSign, 0u);
    ASSERT_EQ(negative, code | this->kSign);
    ASSERT_EQ(Float::encode_stochastic_16(std::bit_cast<float>(bits), static_cast<uint16_t>(bits)), code);
    if (Float::kHasNan) {
      ASSERT_TRUE(std::isnan(Float::decode(code)));
    } else {
      ASSERT_EQ(code, Float::encode(kInf));
    }
  }
  EXPECT_EQ(E4m3::encode(kNan), 0x7f);
  EXPECT_EQ(E5m2::encode(kNan), 0x7f);
}

TYPED_TEST(SmallFloatTest, EveryFp32InputNightly) {
  if (const char* nightly = std::getenv("PLIMSOLL_NIGHTLY"); nightly == nullptr || nightly[0] != '1') {
    GTEST_SKIP() << "all 2^32 inputs take minutes: set PLIMSOLL_NIGHTLY=1";
  }
  using Float = typename TypeParam::Float;
  // Between two codes the oracle is two subtractions; the assertions, which cost more, run only on what differs.
  const uint32_t overflow = this->table_.finite_codes();
  uint32_t bits = 0;
  for (uint32_t code = 0; code <= overflow; ++code) {
    for (; bits < 0x7f800000u; ++bits) {
      const float magnitude = std::bit_cast<float>(bits);
      if (code < overflow && magnitude >= this->table_.value(code + 1)) break;
      const uint32_t expected = code < overflow ? this->table_.nearer(magnitude, code) : overflow;
      if (expected == overflow || Float::encode(magnitude) != expected ||
          Float::encode(-magnitude) != (expected | this->kSign)) {
        ASSERT_NO_FATAL_FAILURE(this->expect_code(magnitude, expected));
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::format
