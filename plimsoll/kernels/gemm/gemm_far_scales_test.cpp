// Scales far from 1 that nearly cancel. A power of two moved from one operand's scale to the other's changes no bit of
// the result, so the product under ordinary scales is the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "plimsoll/kernels/gemm/gemm_test_support.h"

namespace plimsoll::kernels::testing::gemm_far_scales_test {
namespace {

constexpr int64_t kM = 37, kN = 70, kK = 130;
// Moved from B's scale to A's. Sums of E4M3 codes are up to 2^25 here.
constexpr int kShifts[] = {-125, -95, -94, -60, 0, 64, 65, 100, 125};

struct Scales {
  std::vector<float> rows, columns;

  explicit Scales(bool per_row) : rows(per_row ? kM : 1), columns(per_row ? kN : 1) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = 1.0f + 0.013f * static_cast<float>(i);
    for (size_t j = 0; j < columns.size(); ++j) columns[j] = 1.9f - 0.009f * static_cast<float>(j);
  }
};

std::vector<float> shifted(std::vector<float> scales, int exponent) {
  for (float& scale : scales) scale = std::ldexp(scale, exponent);
  return scales;
}

ScaleView view_of(const std::vector<float>& scales) {
  const bool per_row = scales.size() > 1;
  return {.data = scales.data(), .block_rows = per_row ? 1 : 0, .row_stride = per_row ? 1 : 0};
}

class GemmFarScales : public ::testing::TestWithParam<bool> {
 protected:
  Operand a_{kM, kK, Format::kE4m3, 1}, b_{kN, kK, Format::kE5m2, 2};

  std::vector<float> run(const std::vector<float>& rows, const std::vector<float>& columns,
                         const GemmEpilogue& epilogue = {}) const {
    GemmOperand a = a_.view(), b = b_.view();
    a.scale = view_of(rows);
    b.scale = view_of(columns);
    std::vector<float> output(static_cast<size_t>(kM * kN), -1.0f);
    gemm({.a = a,
          .b = b,
          .m = kM,
          .n = kN,
          .k = kK,
          .output = output.data(),
          .output_stride = kN,
          .epilogue = epilogue});
    return output;
  }
};

TEST_P(GemmFarScales, GiveTheBitsOfOrdinaryScalesWithTheSameProduct) {
  const Scales scales(GetParam());
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> expected = run(scales.rows, scales.columns);
    for (float x : expected) ASSERT_TRUE(std::isfinite(x));
    for (int shift : kShifts) {
      EXPECT_EQ(run(shifted(scales.rows, shift), shifted(scales.columns, -shift)), expected)
          << shift << " on " << runtime::name(isa);
    }
  }
}

// 2^-149 and E8M0's 2^-127 are no normal numbers, but powers of two.
TEST_P(GemmFarScales, MayBeSubnormal) {
  const std::vector<float> ones(GetParam() ? kM : 1, 1.0f), columns(GetParam() ? kN : 1, 1.0f);
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> expected = run(ones, columns);
    for (int shift : {-149, -140, -127}) {
      std::vector<float> actual = run(shifted(ones, shift), shifted(columns, 127));
      for (float& x : actual) x = std::ldexp(x, -shift - 127);
      EXPECT_EQ(actual, expected) << shift << " on " << runtime::name(isa);
    }
  }
}

TEST_P(GemmFarScales, AlphaTimesARowScaleMayLeaveFp32) {
  const Scales scales(GetParam());
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> expected = run(scales.rows, scales.columns, {.alpha = 0.7f});
    for (int sign : {-1, 1}) {
      std::vector<float> actual = run(shifted(scales.rows, 100 * sign), shifted(scales.columns, -126 * sign),
                                      {.alpha = std::ldexp(0.7f, 40 * sign)});
      for (float& x : actual) x = std::ldexp(x, -14 * sign);
      EXPECT_EQ(actual, expected) << sign << " on " << runtime::name(isa);
    }
  }
}

TEST_P(GemmFarScales, ReachTheRestOfTheEpilogueAsValues) {
  const Scales scales(GetParam());
  std::vector<float> bias(kN);
  for (size_t j = 0; j < bias.size(); ++j) bias[j] = static_cast<float>(j) - 30.0f;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const auto both = [&](int shift, Format format) {
      GemmOperand a = a_.view(), b = b_.view();
      const std::vector<float> rows = shifted(scales.rows, shift), columns = shifted(scales.columns, -shift);
      a.scale = view_of(rows);
      b.scale = view_of(columns);
      std::vector<uint8_t> output(static_cast<size_t>(kM * kN * format::bytes(format)));
      std::vector<float> sums(kN);
      const float scale = 8;
      float amax = -1;
      gemm({.a = a,
            .b = b,
            .m = kM,
            .n = kN,
            .k = kK,
            .output = output.data(),
            .output_format = format,
            .output_stride = kN,
            .epilogue = {.bias = bias.data(),
                         .activation = GemmActivation::kGelu,
                         .column_sum = sums.data(),
                         .scale = &scale,
                         .amax = &amax}});
      return std::tuple(output, sums, amax);
    };
    for (Format format : {Format::kFp32, Format::kBf16, Format::kE4m3}) {
      EXPECT_EQ(both(122, format), both(0, format)) << runtime::name(isa);
      EXPECT_EQ(both(-122, format), both(0, format)) << runtime::name(isa);
    }
  }
}

// Sums of values of any size have no range in which the first product is known to be normal.
TEST_P(GemmFarScales, AreAppliedToSumsOfValuesToo) {
  const Operand values(kM, kK, Format::kBf16, 3);
  const Scales scales(GetParam());
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const auto run_values = [&](int shift) {
      GemmOperand b = b_.view();
      const std::vector<float> columns = shifted(scales.columns, -shift);
      b.scale = view_of(columns);
      std::vector<float> output(static_cast<size_t>(kM * kN));
      gemm({.a = values.view(),
            .b = b,
            .m = kM,
            .n = kN,
            .k = kK,
            .output = output.data(),
            .output_stride = kN,
            .epilogue = {.alpha = std::ldexp(0.7f, shift)}});
      return output;
    };
    EXPECT_EQ(run_values(124), run_values(0)) << runtime::name(isa);
    EXPECT_EQ(run_values(-120), run_values(0)) << runtime::name(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(PerTensorAndPerRow, GemmFarScales, ::testing::Bool(),
                         [](const auto& param_info) { return param_info.param ? "PerRow" : "PerTensor"; });

class GemmFarRow : public ::testing::Test {
 protected:
  Operand a_{kM, kK, Format::kE4m3, 1}, b_{kN, kK, Format::kE5m2, 2};

  std::vector<float> run(const std::vector<float>& rows, const std::vector<float>& columns) const {
    GemmOperand a = a_.view(), b = b_.view();
    a.scale = view_of(rows);
    b.scale = view_of(columns);
    std::vector<float> output(static_cast<size_t>(kM * kN));
    gemm({.a = a, .b = b, .m = kM, .n = kN, .k = kK, .output = output.data(), .output_stride = kN});
    return output;
  }
};

TEST_F(GemmFarRow, ChangesNoBitOfOtherRows) {
  Scales scales(true);
  // Results that are subnormal, too: each is rounded at the same places.
  for (size_t j = 0; j < scales.columns.size(); j += 2) scales.columns[j] = std::ldexp(scales.columns[j], -126);
  for (size_t i = 0; i < scales.rows.size(); i += 3) scales.rows[i] = std::ldexp(scales.rows[i], -15);
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> expected = run(scales.rows, scales.columns);
    for (size_t far = 0; far < scales.rows.size(); far += 4) {
      std::vector<float> rows = scales.rows;
      rows[far] = 1e35f;
      std::vector<float> actual = run(rows, scales.columns);
      for (size_t j = 0; j < static_cast<size_t>(kN); ++j) {
        actual[far * kN + j] = expected[far * kN + j];
      }
      EXPECT_EQ(actual, expected) << far << " on " << runtime::name(isa);
    }
  }
}

TEST_F(GemmFarRow, ZeroAndNonFiniteScalesStayWhatTheyAre) {
  Scales scales(true);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  scales.rows[0] = 0.0f;
  scales.rows[1] = inf;
  scales.rows[2] = nan;
  scales.rows[3] = -1e35f;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> output = run(scales.rows, scales.columns);
    for (size_t j = 0; j < static_cast<size_t>(kN); ++j) {
      EXPECT_EQ(output[j], 0.0f);
      EXPECT_TRUE(std::isinf(output[kN + j]));
      EXPECT_TRUE(std::isnan(output[2 * kN + j]));
      EXPECT_TRUE(std::isfinite(output[3 * kN + j]));
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing::gemm_far_scales_test
