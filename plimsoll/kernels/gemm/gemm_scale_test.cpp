// Every granularity of scales on either operand against the exact product of the scaled values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "plimsoll/kernels/gemm/gemm_test_support.h"

namespace plimsoll::kernels::testing {
namespace {

struct Scaling {
  const char* name;
  int64_t block_rows, block_k;
  Format format;
};

const std::vector<Scaling> kScalings = {{"per tensor", 0, 0, Format::kFp32},
                                        {"per row", 1, 0, Format::kFp32},
                                        {"32 rows, E8M0", 32, 0, Format::kE8m0},
                                        {"1x128", 1, 128, Format::kFp32},
                                        {"128x128", 128, 128, Format::kFp32},
                                        {"MX 1x32", 1, 32, Format::kE8m0},
                                        {"128x128, E8M0", 128, 128, Format::kE8m0},
                                        {"rows of 3, k of 7", 3, 7, Format::kFp32},
                                        {"whole k as one block", 1, 300, Format::kFp32}};

constexpr int64_t kM = 45, kN = 150, kK = 300;

Operand scaled(int64_t rows, Format format, const Scaling* scaling, Layout layout, uint32_t seed) {
  Operand operand(rows, kK, format, seed, {.layout = layout, .padding = 1});
  if (scaling != nullptr) operand.add_scales(scaling->block_rows, scaling->block_k, scaling->format, seed + 10);
  return operand;
}

// One operand scaled, the other not; the values do not depend on the layout.
void expect_exact(Format a_format, const Scaling* of_a, Format b_format, const Scaling* of_b) {
  const Exact exact = exact_product(scaled(kM, a_format, of_a, Layout::kKContiguous, 1),
                                    scaled(kN, b_format, of_b, Layout::kKContiguous, 2), kM, kN, kK);
  for (runtime::Isa isa : isas()) {
    SCOPED_TRACE(runtime::name(isa));
    runtime::ScopedIsa scope(isa);
    for (Layout layout : {Layout::kKContiguous, Layout::kRowContiguous}) {
      const Operand a = scaled(kM, a_format, of_a, layout, 1), b = scaled(kN, b_format, of_b, layout, 2);
      EXPECT_TRUE(all_within(product(a, b, kM, kN, kK), exact));
    }
  }
}

TEST(GemmScales, EveryGranularityOnOneOperandIsWithinTheBound) {
  for (const Scaling& scaling : kScalings) {
    SCOPED_TRACE(scaling.name);
    expect_exact(Format::kE4m3, &scaling, Format::kBf16, nullptr);
    expect_exact(Format::kFp16, nullptr, Format::kE5m2, &scaling);
  }
}

TEST(GemmScales, EveryPairOfGranularitiesIsWithinTheBound) {
  for (const Scaling& of_a : kScalings) {
    for (const Scaling& of_b : kScalings) {
      const Operand a = scaled(kM, Format::kE4m3, &of_a, Layout::kKContiguous, 1);
      const Operand b = scaled(kN, Format::kE5m2, &of_b, Layout::kKContiguous, 2);
      const Exact exact = exact_product(a, b, kM, kN, kK, 0.75);
      for (runtime::Isa isa : isas()) {
        SCOPED_TRACE(std::string(of_a.name) + " x " + of_b.name + " on " + std::string(runtime::name(isa)));
        runtime::ScopedIsa scope(isa);
        EXPECT_TRUE(all_within(product(a, b, kM, kN, kK, {.alpha = 0.75f}), exact));
      }
    }
  }
}

// Scales that are powers of two change exponents only: the bits are those of the product of the unscaled codes.
TEST(GemmScales, PowersOfTwoAreExactWhereverTheyAreApplied) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    Operand a(kM, kK, Format::kE4m3, 1);
    const Operand b(kN, kK, Format::kE4m3, 2);
    std::vector<float> expected = product(a, b, kM, kN, kK);
    for (float& x : expected) x *= 0.25f;
    for (const Scaling& scaling : kScalings) {
      if (scaling.format != Format::kE8m0) continue;
      a.add_scales(scaling.block_rows, scaling.block_k, scaling.format, 3);
      const GemmOperand view = a.view();
      for (int64_t i = 0; i * std::max<int64_t>(scaling.block_rows, 1) < kM; ++i) {
        for (int64_t j = 0; j < view.scale.row_stride; ++j) a.set_scale_code(i, j, 125);
      }
      EXPECT_EQ(product(a, b, kM, kN, kK), expected) << scaling.name << " on " << runtime::name(isa);
    }
  }
}

TEST(GemmScales, NanScaleMakesItsBlockNan) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (int64_t block_k : {32, 0}) {
      for (Layout layout : {Layout::kKContiguous, Layout::kRowContiguous}) {
        Operand a(kM, kK, Format::kE4m3, 1, {.layout = layout});
        const Operand b(kN, kK, Format::kE4m3, 2);
        a.add_scales(8, block_k, Format::kE8m0, 3);
        a.set_scale_code(2, 0, 255);
        const std::vector<float> output = product(a, b, kM, kN, kK);
        for (int64_t i = 0; i < kM * kN; ++i) {
          EXPECT_EQ(std::isnan(output[static_cast<size_t>(i)]), i / kN / 8 == 2);
        }
      }
    }
  }
}

// b with its scales folded in, as FP32 values.
Operand folded(const Operand& b, int64_t rows, int64_t k) {
  Operand values(rows, k, Format::kFp32, 3);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      values.set_code(row, i, std::bit_cast<uint32_t>(static_cast<float>(b.value(row, i))));
    }
  }
  return values;
}

void expect_same(const std::vector<float>& actual, const std::vector<float>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i]) continue;
    ADD_FAILURE() << "at " << i << ": " << actual[i] << " instead of " << expected[i];
    return;
  }
}

// Codes stay codes when they are packed, and are decoded in registers for few rows, in panels for many.
TEST(GemmScales, CodesInBlocksAreMultipliedAsTheirFoldedValues) {
  struct Case {
    int64_t n, k, block_rows, block_k;
    Layout layout;
  };
  const std::vector<Case> cases = {{1, 65, 1, 64, Layout::kKContiguous},
                                   {33, 129, 1, 128, Layout::kKContiguous},
                                   {150, 700, 128, 128, Layout::kKContiguous},
                                   {70, 300, 1, 192, Layout::kRowContiguous},
                                   {96, 1100, 3, 128, Layout::kKContiguous}};
  for (const auto& [n, k, block_rows, block_k, layout] : cases) {
    Operand b(n, k, Format::kE4m3, 2, {.layout = layout, .padding = 1});
    b.add_scales(block_rows, block_k, Format::kFp32, 5);
    b.set_code(n - 1, k - 1, 0x7f);  // NaN
    b.set_code(0, 0, 0x80);          // -0
    const Operand values = folded(b, n, k);
    for (runtime::Isa isa : isas()) {
      runtime::ScopedIsa scope(isa);
      const size_t bytes = gemm_packed_b_bytes(b.view(), n, k);
      const int64_t whole_panels = (n + 31) / 32 * 32, whole_groups = (k + 63) / 64;
      EXPECT_EQ(bytes, static_cast<size_t>(whole_panels * whole_groups * (64 + sizeof(float))));
      std::vector<char> packed(bytes + 1, 'g');
      gemm_pack_b(b.view(), n, k, packed.data());
      EXPECT_EQ(packed[bytes], 'g');
      for (const int64_t m : {1, 2, 3, 4, 6, 7, 16, 20, 40, 250}) {
        const Operand a(m, k, Format::kBf16, 1);
        SCOPED_TRACE(describe(Format::kBf16, Format::kE4m3, m, n, k, isa));
        const std::vector<float> expected = product(a, values, m, n, k);
        expect_same(product(a, b, m, n, k), expected);
        expect_same(product(a, b, m, n, k, {}, packed.data()), expected);
      }
    }
  }
}

// A gradient of weights from no tokens: the scales of the rows of X vary along k, and there is none of them.
TEST(GemmScales, OfNoValuesAreNotRead) {
  const float nan = std::nanf("");
  const ScaleView none = {.data = &nan, .block_rows = 0, .block_cols = 1, .row_stride = 0, .col_stride = 1};
  const GemmOperand operand = {.data = &nan, .format = Format::kE4m3, .row_stride = 1, .k_stride = 17, .scale = none};
  for (runtime::Isa isa : isas()) {
    SCOPED_TRACE(runtime::name(isa));
    runtime::ScopedIsa scope(isa);
    for (const int64_t m : {1, 17}) {
      std::vector<float> output(static_cast<size_t>(m * 33), nan);
      gemm({.a = operand, .b = operand, .m = m, .n = 33, .k = 0, .output = output.data(), .output_stride = 33});
      EXPECT_EQ(output, std::vector<float>(output.size(), 0.0f)) << m;
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing
