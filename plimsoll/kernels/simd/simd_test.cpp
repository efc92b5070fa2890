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
#include "plimsoll/kernels/simd/simd_probe.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

using format::Overflow;
using runtime::Isa;

struct Probed {
  Isa isa;
  const SimdProbe& probe;
};

std::vector<Probed> present() {
  std::vector<Probed> result = {{Isa::kPortable, kSimdProbePortable}};
  if (runtime::detected_isa() >= Isa::kAvx2) result.push_back({Isa::kAvx2, kSimdProbeAvx2});
  if (runtime::detected_isa() >= Isa::kAvx512) result.push_back({Isa::kAvx512, kSimdProbeAvx512});
  return result;
}

uint32_t word(float x) { return std::bit_cast<uint32_t>(x); }

// Every exponent and sign with the mantissas around each rounding boundary of FP8, FP16 and BF16, and random ones.
std::vector<float> floats() {
  std::vector<float> result;
  std::mt19937 random(7);
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, static_cast<uint32_t>(random() & 0xffff)}) {
      result.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  result.push_back(1.0f);  // an odd count, so that the tail is used
  return result;
}

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

TEST(Simd, FunctionsGiveTheSameBitsOnEveryIsa) {
  const std::vector<float> x = floats();
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> expected(x.size()), y(x.size());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    using Member = void (*SimdProbe::*)(const float*, float*, int64_t);
    for (Member member :
         {&SimdProbe::exp, &SimdProbe::exp_clamped, &SimdProbe::exp2_bounded, &SimdProbe::log, &SimdProbe::sigmoid,
          &SimdProbe::gelu, &SimdProbe::gelu_gradient, &SimdProbe::silu, &SimdProbe::silu_gradient, &SimdProbe::tanh,
          &SimdProbe::gelu_erf, &SimdProbe::gelu_erf_gradient, &SimdProbe::round_even, &SimdProbe::square_root}) {
      (kSimdProbePortable.*member)(x.data(), expected.data(), n);
      (probe.*member)(x.data(), y.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(word(y[i]) == word(expected[i]) || (std::isnan(y[i]) && std::isnan(expected[i])))
            << x[i] << " gives " << y[i] << " and " << expected[i];
      }
    }
    for (size_t i = 0; i + 16 < x.size(); i += 1600) {
      const float sum = probe.sum16(x.data() + i), reference = kSimdProbePortable.sum16(x.data() + i);
      ASSERT_TRUE(word(sum) == word(reference) || (std::isnan(sum) && std::isnan(reference)));
    }
  }
}

TEST(Simd, AFunctionTogetherWithItsGradientHasTheSameBits) {
  const std::vector<float> x = floats();
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> expected(x.size()), y(x.size());
  using Member = void (*SimdProbe::*)(const float*, float*, int64_t);
  constexpr std::pair<Member, Member> kPairs[] = {{&SimdProbe::gelu, &SimdProbe::gelu_of_both},
                                                  {&SimdProbe::gelu_gradient, &SimdProbe::gelu_gradient_of_both},
                                                  {&SimdProbe::silu, &SimdProbe::silu_of_both},
                                                  {&SimdProbe::silu_gradient, &SimdProbe::silu_gradient_of_both}};
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const auto& [alone, both] : kPairs) {
      (probe.*alone)(x.data(), expected.data(), n);
      (probe.*both)(x.data(), y.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(word(y[i]) == word(expected[i]) || (std::isnan(y[i]) && std::isnan(expected[i]))) << x[i];
      }
    }
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

// Largest error in units of the last place of the exact result, over [low, high].
template <class Function, class Exact>
double worst_ulp(Function function, Exact exact, float low, float high) {
  constexpr int64_t kPoints = 200001;
  std::vector<float> x(kPoints), y(kPoints);
  for (int64_t i = 0; i < kPoints; ++i) {
    x[static_cast<size_t>(i)] = low + (high - low) * static_cast<float>(i) / static_cast<float>(kPoints - 1);
  }
  function(x.data(), y.data(), kPoints);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double reference = exact(static_cast<double>(x[i]));
    const int exponent = std::max(std::ilogb(reference), -126);
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - reference) / std::ldexp(1.0, exponent - 23));
  }
  return worst;
}

TEST(Simd, ExpIsAccurateToTwoUlp) {
  EXPECT_LE(worst_ulp(
                kSimdProbePortable.exp, [](double x) { return std::exp(x); }, -87.33f, 88.7228f),
            2.0);
  EXPECT_LE(worst_ulp(
                kSimdProbePortable.exp, [](double x) { return std::exp(x); }, -1.0f, 1.0f),
            2.0);
}

TEST(Simd, ExpIsZeroWhereItWouldBeSubnormalAndInfWhereItOverflows) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-87.3299f, -87.34f, -1e30f, -inf, 88.7228f, 88.7229f, 1e30f, inf};
  std::vector<float> y(x.size());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_GE(y[0], std::numeric_limits<float>::min());
    for (size_t i : {1, 2, 3}) EXPECT_EQ(y[i], 0.0f) << x[i];
    EXPECT_TRUE(std::isfinite(y[4]));
    for (size_t i : {5, 6, 7}) EXPECT_EQ(y[i], inf) << x[i];
  }
}

TEST(Simd, ExpClampedIsWithinThreeUnitsAndEndsInZeroAndInf) {
  for (const auto& [low, high] : {std::pair<float, float>{-87.33f, 88.37f}, {-1.0f, 1.0f}}) {
    constexpr int64_t kPoints = 200001;
    std::vector<float> x(kPoints), y(kPoints);
    for (int64_t i = 0; i < kPoints; ++i) {
      x[static_cast<size_t>(i)] = low + (high - low) * static_cast<float>(i) / static_cast<float>(kPoints - 1);
    }
    kSimdProbePortable.exp_clamped(x.data(), y.data(), kPoints);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / exact);
    }
    EXPECT_LE(worst, 3 * 0x1p-24);
  }
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0f, -0.0f, -87.6f, -87.7f, -1e30f, -inf, 88.37f, 88.4f, 1e30f, inf, nan};
  std::vector<float> y(x.size());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.exp_clamped(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i : {0, 1}) EXPECT_EQ(y[i], 1.0f);
    EXPECT_GT(y[2], 0.0f);
    for (size_t i : {3, 4, 5}) EXPECT_EQ(y[i], 0.0f) << x[i];
    EXPECT_TRUE(std::isfinite(y[6]));
    for (size_t i : {7, 8, 9}) EXPECT_EQ(y[i], inf) << x[i];
    EXPECT_TRUE(std::isnan(y[10]));
  }
}

TEST(Simd, Exp2BoundedIsAccurateToThreeUlpAndNeverHidesAValue) {
  EXPECT_LE(worst_ulp(
                kSimdProbePortable.exp2_bounded, [](double x) { return std::exp2(x); }, -126.0f, 127.0f),
            3.0);
  EXPECT_LE(worst_ulp(
                kSimdProbePortable.exp2_bounded, [](double x) { return std::exp2(x); }, -1.0f, 1.0f),
            3.0);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0f, -0.0f, -126.4f, -126.6f, -1e30f, -inf, nan, std::bit_cast<float>(0x7fffffffu),
                                inf};
  std::vector<float> y(x.size());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.exp2_bounded(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i : {0, 1}) EXPECT_EQ(y[i], 1.0f);
    EXPECT_GT(y[2], 0.0f);
    for (size_t i : {3, 4, 5}) EXPECT_EQ(y[i], 0.0f) << x[i];
    for (size_t i : {6, 7, 8}) EXPECT_TRUE(std::isnan(y[i])) << x[i];
  }
}

TEST(Simd, LogIsAccurateToTwoUlp) {
  auto exact = [](double x) { return std::log(x); };
  EXPECT_LE(worst_ulp(kSimdProbePortable.log, exact, 0.5f, 2.0f), 2.0);
  EXPECT_LE(worst_ulp(kSimdProbePortable.log, exact, 1e-30f, 1e-3f), 2.0);
  EXPECT_LE(worst_ulp(kSimdProbePortable.log, exact, 1.0f, 1e6f), 2.0);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {1.0f, std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), inf, nan};
  std::vector<float> y(x.size());
  for (const auto& [isa, probe] : present()) {
    SCOPED_TRACE(std::string(runtime::name(isa)));
    probe.log(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(y[0], 0.0f);
    constexpr double kTwoUlp = 2 * 0x1p-17;  // of numbers between 64 and 128
    for (size_t i : {1, 2}) EXPECT_NEAR(y[i], exact(static_cast<double>(x[i])), kTwoUlp);
    EXPECT_EQ(y[3], inf);
    EXPECT_TRUE(std::isnan(y[4]));
  }
}

TEST(Simd, ActivationsAreCloseToTheirDefinitions) {
  auto tanh_gelu = [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); };
  auto relative = [](auto function, auto exact, double scale_floor) {
    std::vector<float> x, y;
    for (float v = -12.0f; v <= 12.0f; v += 0.001f) x.push_back(v);
    y.resize(x.size());
    function(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double reference = exact(static_cast<double>(x[i]));
      worst =
          std::max(worst, std::abs(static_cast<double>(y[i]) - reference) / std::max(std::abs(reference), scale_floor));
    }
    return worst;
  };
  // 1e-3 floor: below it tanh(u) near -1 cancels in the double reference too.
  EXPECT_LE(relative(kSimdProbePortable.gelu, tanh_gelu, 1e-3), 64 * 0x1p-24);
  EXPECT_LE(relative(
                kSimdProbePortable.silu, [](double x) { return x / (1 + std::exp(-x)); }, 1e-3),
            16 * 0x1p-24);
  auto derivative = [](auto f) { return [f](double x) { return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5; }; };
  EXPECT_LE(relative(kSimdProbePortable.gelu_gradient, derivative(tanh_gelu), 1e-1), 1e-5);
  EXPECT_LE(
      relative(kSimdProbePortable.silu_gradient, derivative([](double x) { return x / (1 + std::exp(-x)); }), 1e-1),
      1e-5);
}

TEST(Simd, TanhAndTheExactGeluAreAccurateWhereTheyAreSmall) {
  std::vector<float> x, y;
  for (float v = -12.9f; v <= 12.9f; v += 0.001f) x.push_back(v);
  for (float v = 1e-30f; v < 1; v *= 3) x.insert(x.end(), {v, -v});
  y.resize(x.size());
  kSimdProbePortable.tanh(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::tanh(static_cast<double>(x[i]));
    ASSERT_LE(std::abs(static_cast<double>(y[i]) - exact), 6 * 0x1p-24 * std::abs(exact)) << x[i];
  }
  kSimdProbePortable.gelu_erf(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]), exact = v * std::erfc(-v / std::sqrt(2.0)) / 2;
    ASSERT_LE(std::abs(static_cast<double>(y[i]) - exact), (9 + v * v / 2) * 0x1p-24 * std::abs(exact)) << x[i];
  }
  kSimdProbePortable.gelu_erf_gradient(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]), share = std::erfc(-v / std::sqrt(2.0)) / 2;
    const double rest = v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
    // The two terms may cancel.
    ASSERT_LE(std::abs(static_cast<double>(y[i]) - (share + rest)), (12 + v * v) * 0x1p-24 * (share + std::abs(rest)))
        << x[i];
  }
}

TEST(Simd, FunctionsKeepNonFiniteValuesVisible) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {inf, nan, -inf, 1e38f, -1e38f};
  std::vector<float> y(x.size());
  kSimdProbePortable.exp(x.data(), y.data(), 5);
  EXPECT_EQ(y[0], inf);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[2], 0.0f);
  kSimdProbePortable.gelu(x.data(), y.data(), 5);
  EXPECT_EQ(y[0], inf);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[3], 1e38f);
  EXPECT_EQ(y[4], 0.0f);
  for (auto gradient : {kSimdProbePortable.gelu_gradient, kSimdProbePortable.gelu_erf_gradient}) {
    gradient(x.data(), y.data(), 5);
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[4], 0.0f);
  }
  kSimdProbePortable.gelu_erf(x.data(), y.data(), 5);
  EXPECT_EQ(y[0], inf);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_TRUE(std::isnan(y[2]));  // -Inf * 0, as torch has it
  EXPECT_EQ(y[3], 1e38f);
  kSimdProbePortable.tanh(x.data(), y.data(), 5);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_TRUE(std::isnan(y[1]));
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
