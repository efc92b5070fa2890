// Elementary functions of the vectors: their accuracy, and their bits on every ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/kernels/activation/activation_oracle.h"
#include "plimsoll/kernels/element_math.h"
#include "plimsoll/kernels/simd/simd_testing.h"

namespace plimsoll::kernels {
namespace {

using testing::floats;
using testing::present;
using testing::word;

constexpr double kTanhError = 6 * 0x1p-24;  // relative, as math.h has it

TEST(SimdFunctions, FunctionsGiveTheSameBitsOnEveryIsa) {
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

// CUDA kernels use those of one number.
TEST(SimdFunctions, FunctionsOfOneNumberHaveTheSameBits) {
  const std::vector<float> x = floats();
  std::vector<float> expected(x.size());
  using Function = float (*)(float);
  using Member = void (*SimdProbe::*)(const float*, float*, int64_t);
  constexpr std::pair<Member, Function> kPairs[] = {
      {&SimdProbe::exp, exp_of}, {&SimdProbe::exp2_bounded, exp2_bounded_of}, {&SimdProbe::log, log_of}};
  for (const auto& [member, function] : kPairs) {
    (kSimdProbePortable.*member)(x.data(), expected.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const float y = function(x[i]);
      ASSERT_TRUE(word(y) == word(expected[i]) || (std::isnan(y) && std::isnan(expected[i])))
          << x[i] << " gives " << y << " and " << expected[i];
    }
  }
}

TEST(SimdFunctions, AFunctionTogetherWithItsGradientHasTheSameBits) {
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

TEST(SimdFunctions, ExpIsAccurateToTwoUlp) {
  EXPECT_LE(worst_ulp(
                kSimdProbePortable.exp, [](double x) { return std::exp(x); }, -87.33f, 88.7228f),
            2.0);
  EXPECT_LE(worst_ulp(
                kSimdProbePortable.exp, [](double x) { return std::exp(x); }, -1.0f, 1.0f),
            2.0);
}

TEST(SimdFunctions, ExpIsZeroWhereItWouldBeSubnormalAndInfWhereItOverflows) {
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

TEST(SimdFunctions, ExpClampedIsWithinThreeUnitsAndEndsInZeroAndInf) {
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

TEST(SimdFunctions, Exp2BoundedIsAccurateToThreeUlpAndNeverHidesAValue) {
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

TEST(SimdFunctions, LogIsAccurateToTwoUlp) {
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

TEST(SimdFunctions, ActivationsAreCloseToTheirDefinitions) {
  std::vector<float> x;
  for (float v = -12.0f; v <= 12.0f; v += 0.001f) x.push_back(v);
  std::vector<float> y(x.size());
  const auto check = [&](auto function, auto oracle, Curve curve) {
    function(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const testing::Value expected = oracle(curve, static_cast<double>(x[i]), testing::kDefaultParameters);
      ASSERT_NEAR(y[i], expected.exact, expected.bound) << x[i];
    }
  };
  check(kSimdProbePortable.gelu, testing::activation_oracle, Curve::kGelu);
  check(kSimdProbePortable.silu, testing::activation_oracle, Curve::kSilu);
  check(kSimdProbePortable.gelu_gradient, testing::derivative_oracle, Curve::kGelu);
  check(kSimdProbePortable.silu_gradient, testing::derivative_oracle, Curve::kSilu);
}

TEST(SimdFunctions, TanhAndTheExactGeluAreAccurateWhereTheyAreSmall) {
  std::vector<float> x, y;
  for (float v = -12.9f; v <= 12.9f; v += 0.001f) x.push_back(v);
  for (float v = 1e-30f; v < 1; v *= 3) x.insert(x.end(), {v, -v});
  y.resize(x.size());
  kSimdProbePortable.tanh(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::tanh(static_cast<double>(x[i]));
    ASSERT_LE(std::abs(static_cast<double>(y[i]) - exact), kTanhError * std::abs(exact)) << x[i];
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

TEST(SimdFunctions, FunctionsKeepNonFiniteValuesVisible) {
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
  EXPECT_NEAR(y[0], 1, kTanhError);
  EXPECT_TRUE(std::isnan(y[1]));
}

}  // namespace
}  // namespace plimsoll::kernels
