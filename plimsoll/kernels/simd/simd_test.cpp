// Conversions, single operations and maxima of the vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/fp16.h"
#include "plimsoll/format/fp8.h"
#include "plimsoll/kernels/lane_order.h"
#include "plimsoll/kernels/simd/simd_testing.h"

namespace plimsoll::kernels {
namespace {

using format::Overflow;
using testing::floats;
using testing::present;
using testing::word;

TEST(Simd, EncodesFp8AsTheFormatSays) {
  const std::vector<float> x = floats();
  std::vector<uint8_t> codes(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    auto check = [&](auto function, auto encode, Overflow overflow) {
      function(x.data(), codes.data(), n);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(codes[i], encode(x[i], overflow)) << x[i] << " " << word(x[i]);
    };
    check(probe.encode_e4m3, format::E4m3::encode, Overflow::kSaturate);
    check(probe.encode_e4m3_non_finite, format::E4m3::encode, Overflow::kNonFinite);
    check(probe.encode_e5m2, format::E5m2::encode, Overflow::kSaturate);
    check(probe.encode_e5m2_non_finite, format::E5m2::encode, Overflow::kNonFinite);
  }
}

// Values that need care (subnormal codes, overflow, Inf, NaN) take a way of their own, so each stands in every place
// among ordinary ones, and all stand together.
TEST(Simd, EncodesFp8By64AsTheFormatSays) {
  const std::vector<float> special = floats();
  std::vector<float> mixed(special.size() / 64 * 64);
  std::mt19937 random(5);
  for (size_t i = 0; i < mixed.size(); ++i) {
    const float ordinary =
        std::bit_cast<float>(static_cast<uint32_t>((random() & 0x807fffffu) | ((120 + random() % 15) << 23)));
    mixed[i] = i % 64 == i / 64 % 64 ? special[random() % special.size()] : ordinary;
  }
  for (const std::vector<float>& x : {special, mixed}) {
    const size_t whole = x.size() / 64 * 64;
    std::vector<uint8_t> codes(whole);
    for (const auto& [isa, probe] : present()) {
      SCOPED_TRACE(std::string(runtime::name(isa)));
      auto check = [&](auto function, auto encode, Overflow overflow) {
        function(x.data(), codes.data(), static_cast<int64_t>(whole));
        for (size_t i = 0; i < whole; ++i) ASSERT_EQ(codes[i], encode(x[i], overflow)) << x[i] << " " << word(x[i]);
      };
      check(probe.encode_e4m3_by_64, format::E4m3::encode, Overflow::kSaturate);
      check(probe.encode_e4m3_pairs, format::E4m3::encode, Overflow::kSaturate);
      check(probe.encode_e4m3_non_finite_by_64, format::E4m3::encode, Overflow::kNonFinite);
      check(probe.encode_e4m3_non_finite_pairs, format::E4m3::encode, Overflow::kNonFinite);
      check(probe.encode_e5m2_by_64, format::E5m2::encode, Overflow::kSaturate);
      check(probe.encode_e5m2_pairs, format::E5m2::encode, Overflow::kSaturate);
      check(probe.encode_e5m2_non_finite_by_64, format::E5m2::encode, Overflow::kNonFinite);
      check(probe.encode_e5m2_non_finite_pairs, format::E5m2::encode, Overflow::kNonFinite);
    }
  }
}

TEST(Simd, DecodesFp8AsTheFormatSays) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<float> y(256);
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (int64_t n : {256, 255, 17}) {
      probe.decode_e4m3(codes.data(), y.data(), n);
      for (size_t i = 0; i < static_cast<size_t>(n); ++i)
        ASSERT_EQ(word(y[i]), word(format::E4m3::decode(codes[i]))) << i;
      probe.decode_e5m2(codes.data(), y.data(), n);
      for (size_t i = 0; i < static_cast<size_t>(n); ++i)
        ASSERT_EQ(word(y[i]), word(format::E5m2::decode(codes[i]))) << i;
    }
  }
}

TEST(Simd, LoadsBf16InTheOrderThatDevicesSumIn) {
  uint16_t row[64];
  for (int i = 0; i < 64; ++i) row[i] = format::Bf16::encode(static_cast<float>(i));
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    float places[64];
    probe.load_64_of_bf16(row, places);
    for (int i = 0; i < 64; ++i)
      EXPECT_EQ(places[i], static_cast<float>(element_at_place(format::Format::kBf16, i, 64)));
  }
  EXPECT_EQ(element_at_place(format::Format::kBf16, 64 + 17, 128), 64 + 3);
  EXPECT_EQ(element_at_place(format::Format::kBf16, 64 + 17, 127), 64 + 17) << "what is left is in order";
  EXPECT_EQ(element_at_place(format::Format::kFp16, 17, 128), 17);
}

TEST(Simd, ConvertsSixteenBitFormatsAsTheFormatSays) {
  const std::vector<float> x = floats();
  std::vector<uint16_t> halves(x.size()), all(65536);
  std::vector<float> y(all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.to_bf16(x.data(), halves.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(halves[i], format::Bf16::encode(x[i])) << word(x[i]);
    probe.to_bf16_by_32(x.data(), halves.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size() / 32 * 32; ++i) ASSERT_EQ(halves[i], format::Bf16::encode(x[i])) << word(x[i]);
    probe.upper_by_32(x.data(), halves.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size() / 32 * 32; ++i) ASSERT_EQ(halves[i], word(x[i]) >> 16);
    probe.to_fp16(x.data(), halves.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(halves[i], format::Fp16::encode(x[i])) << word(x[i]);
    probe.from_bf16(all.data(), y.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(word(y[i]) == word(format::Bf16::decode(all[i])) || std::isnan(y[i])) << i;
      ASSERT_EQ(std::isnan(y[i]), std::isnan(format::Bf16::decode(all[i]))) << i;
    }
    probe.from_fp16(all.data(), y.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(word(y[i]) == word(format::Fp16::decode(all[i])) || std::isnan(y[i])) << i;
      ASSERT_EQ(std::isnan(y[i]), std::isnan(format::Fp16::decode(all[i]))) << i;
    }
  }
}

TEST(Simd, ConvertsPairsOfBf16AsTheFormatSays) {
  const std::vector<float> x = floats();
  std::vector<uint16_t> halves(x.size()), all(65536);
  std::vector<float> y(all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i * 40503u);  // each once, mixed
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.to_bf16_pairs(x.data(), halves.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size() / 32 * 32; ++i) {
      if (std::isnan(x[i])) continue;
      ASSERT_EQ(halves[i], format::Bf16::encode(x[i])) << word(x[i]);
    }
    probe.from_bf16_pairs(all.data(), y.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(word(y[i]), static_cast<uint32_t>(all[i]) << 16);
    // NaNs that were bf16 before stay NaN.
    probe.to_bf16_pairs(y.data(), halves.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(halves[i], all[i]);
  }
}

TEST(Simd, FusedMultiplyAddRoundsOnce) {
  const std::vector<float> x = floats();
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> a(x), b(x), c(x), y(x);
  std::mt19937 random(11);
  std::shuffle(b.begin(), b.end(), random);
  // Sums near zero, where a rounded product shows, and sums of zeros of either sign.
  for (size_t i = 0; i < x.size(); ++i) c[i] = i % 2 == 0 ? -a[i] * b[i] : x[(i * 31) % x.size()];
  for (float* p : {a.data(), b.data(), c.data()}) {
    for (size_t i = 0; i < 64; ++i) p[i] = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    auto check = [&](auto function, float sign) {
      function(a.data(), b.data(), c.data(), y.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected = std::fma(sign * a[i], b[i], c[i]);
        ASSERT_TRUE(word(y[i]) == word(expected) || (std::isnan(y[i]) && std::isnan(expected)))
            << a[i] << " " << b[i] << " " << c[i];
      }
    };
    check(probe.fma, 1.0f);
    check(probe.fnma, -1.0f);
  }
}

TEST(Simd, AmaxPutsNanAboveInfAboveFinite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [isa, probe] : present()) {
    std::vector<float> x(37, -1.0f);
    x[20] = -3.0f;
    EXPECT_EQ(probe.amax(x.data(), 37), 3.0f);
    x[36] = -inf;
    EXPECT_EQ(probe.amax(x.data(), 37), inf);
    x[5] = -nan;
    EXPECT_TRUE(std::isnan(probe.amax(x.data(), 37)));
    EXPECT_EQ(probe.amax(x.data(), 0), 0.0f);
  }
}

TEST(Simd, FindsMaximaOfHalvesAndOfSixteenVectors) {
  std::mt19937 random(13);
  std::vector<uint16_t> a(320), b(a.size()), y(a.size());
  for (uint16_t& value : a) value = static_cast<uint16_t>(random());
  for (uint16_t& value : b) value = static_cast<uint16_t>(random());
  std::vector<int32_t> rows(256), largest(16);
  for (int32_t& value : rows) value = static_cast<int32_t>(random());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.max_u16(a.data(), b.data(), y.data(), static_cast<int64_t>(a.size()));
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(y[i], std::max(a[i], b[i]));
    probe.reduce_max_16(rows.data(), largest.data());
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(largest[static_cast<size_t>(i)], *std::max_element(rows.begin() + 16 * i, rows.begin() + 16 * i + 16));
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
