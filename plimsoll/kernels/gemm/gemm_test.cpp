// Products against the exact sum in double: formats, layouts, shapes, and values that are not finite.
#include "plimsoll/kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "plimsoll/kernels/gemm/gemm_test_support.h"

namespace plimsoll::kernels::testing {
namespace {

constexpr Layout kLayouts[3][2] = {{Layout::kKContiguous, Layout::kKContiguous},       // NT
                                   {Layout::kKContiguous, Layout::kRowContiguous},     // NN
                                   {Layout::kRowContiguous, Layout::kRowContiguous}};  // TN

// The values do not depend on the layout, so one exact product serves all layouts and levels.
void expect_exact(Format a_format, Format b_format, int64_t m, int64_t n, int64_t k) {
  const Exact exact = exact_product(Operand(m, k, a_format, 1), Operand(n, k, b_format, 2), m, n, k);
  for (runtime::Isa isa : isas()) {
    SCOPED_TRACE(describe(a_format, b_format, m, n, k, isa));
    runtime::ScopedIsa scope(isa);
    for (const auto& [a_layout, b_layout] : kLayouts) {
      const Operand a(m, k, a_format, 1, {.layout = a_layout}), b(n, k, b_format, 2, {.layout = b_layout});
      EXPECT_TRUE(all_within(product(a, b, m, n, k), exact));
    }
  }
}

TEST(GemmComparator, RejectsWhatIsWrong) {
  EXPECT_FALSE(within(-5, -500, 1));
  EXPECT_FALSE(within(5, std::numeric_limits<double>::quiet_NaN(), 1));
  EXPECT_FALSE(within(5, std::numeric_limits<double>::infinity(), 1));
  EXPECT_FALSE(within(std::numeric_limits<double>::quiet_NaN(), 5, 1));
  EXPECT_FALSE(within(std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 1));
  EXPECT_FALSE(within(5, 5.1, 0.05));
  EXPECT_TRUE(within(5, 5.1, 0.2));
  EXPECT_TRUE(within(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(), 0));
}

TEST(GemmBound, IsTightEnoughToSeeOneLostTerm) {
  // One product of typical size left out of 1000 is far outside the bound.
  EXPECT_LT(gemm_error_bound(1000, 1000.0), 0.1);
  EXPECT_GT(gemm_error_bound(1000, 1000.0), 1000.0 * 0x1p-24);
}

TEST(Gemm, EveryPairOfFormatsIsWithinTheBound) {
  for (Format a : kOperandFormats) {
    for (Format b : kOperandFormats) expect_exact(a, b, 17, 35, 67);
  }
}

TEST(Gemm, EveryShapeIsWithinTheBound) {
  const std::vector<std::array<int64_t, 3>> shapes = {{1, 1, 1},     {1, 33, 2},    {13, 31, 15},   {14, 32, 16},
                                                      {15, 33, 17},  {16, 64, 31},  {28, 1, 513},   {1, 100, 64},
                                                      {170, 65, 33}, {47, 97, 530}, {185, 40, 1030}};
  for (const auto& [m, n, k] : shapes) {
    expect_exact(Format::kFp32, Format::kFp32, m, n, k);
    expect_exact(Format::kBf16, Format::kBf16, m, n, k);
    expect_exact(Format::kBf16, Format::kE4m3, m, n, k);
  }
}

// AMX tiles have 16 rows and columns and 32 k (FP16 16), two side by side; 64 k are packed at a time.
TEST(Gemm, EdgesOfTilesAreWithinTheBound) {
  const std::vector<std::array<int64_t, 3>> shapes = {{16, 16, 32}, {31, 31, 31}, {32, 32, 64}, {33, 33, 65},
                                                      {63, 17, 48}, {65, 15, 33}, {97, 64, 200}};
  for (const auto& [m, n, k] : shapes) {
    for (Format format : {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2}) {
      expect_exact(format, format, m, n, k);
    }
  }
}

TEST(Gemm, NoSizeIsTooSmall) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const Operand a(3, 4, Format::kFp32, 1), b(5, 4, Format::kFp32, 2);
    EXPECT_TRUE(product(a, b, 0, 5, 4).empty());
    EXPECT_TRUE(product(a, b, 3, 0, 4).empty());
    EXPECT_EQ(product(a, b, 3, 5, 0), std::vector<float>(15, 0.0f));
    const std::vector<float> bias = {1, 2, 3, 4, 5};
    const std::vector<float> expected = {1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5};
    EXPECT_EQ(product(a, b, 3, 5, 0, {.bias = bias.data()}), expected);
  }
}

// Rows of the identity pick out single elements of B, so each code shows as its value: packed or not, decoded at once
// or as it is multiplied.
TEST(Gemm, EveryFp8CodeCountsAsItsValue) {
  const int64_t k = 259, n = 41;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kE4m3, Format::kE5m2}) {
      for (Layout layout : {Layout::kKContiguous, Layout::kRowContiguous}) {
        Operand identity(k, k, Format::kBf16, 1), b(n, k, format, 2, {.layout = layout});
        for (int64_t i = 0; i < k * k; ++i) identity.set_code(i / k, i % k, i / k == i % k ? 0x3f80 : 0);
        for (int64_t i = 0; i < n * k; ++i) {
          const uint32_t code = static_cast<uint32_t>(i) % 256;
          b.set_code(i / k, i % k, std::isfinite(decode_reference(format, code)) ? code : 0);
        }
        std::vector<char> packed(gemm_packed_b_bytes(b.view(), n, k));
        gemm_pack_b(b.view(), n, k, packed.data());
        for (int64_t rows : {int64_t{1}, int64_t{3}, int64_t{6}, int64_t{9}, int64_t{50}, k}) {
          for (const void* packed_b : {static_cast<const void*>(nullptr), static_cast<const void*>(packed.data())}) {
            const int64_t first = k - rows;
            GemmOperand a = identity.view();
            a.data = static_cast<const uint16_t*>(a.data) + first * k;
            std::vector<float> output(static_cast<size_t>(rows * n));
            gemm({.a = a,
                  .b = b.view(),
                  .m = rows,
                  .n = n,
                  .k = k,
                  .output = output.data(),
                  .output_stride = n,
                  .packed_b = packed_b});
            for (int64_t i = 0; i < rows * n; ++i) {
              ASSERT_EQ(output[static_cast<size_t>(i)], b.value(i % n, first + i / n))
                  << describe(Format::kBf16, format, rows, n, k, isa) << (packed_b == nullptr ? "" : " packed");
            }
          }
        }
      }
    }
  }
}

// Each value times one: also where FP16 is multiplied as the sum of two.
TEST(Gemm, EveryFp16ValueCountsAsItself) {
  const int64_t n = 65536;
  Operand one(1, 1, Format::kFp16, 1), b(n, 1, Format::kFp16, 2);
  one.set_code(0, 0, 0x3c00);
  for (int64_t i = 0; i < n; ++i) b.set_code(i, 0, static_cast<uint32_t>(i));
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> output = product(one, b, 1, n, 1);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_PRED3(within, output[static_cast<size_t>(i)], b.value(i, 0), 0) << i << " on " << runtime::name(isa);
    }
  }
}

TEST(Gemm, LeadingDimensionsAndAlignmentAreFree) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kFp16, Format::kBf16, Format::kE4m3}) {
      for (const auto& [a_layout, b_layout] : kLayouts) {
        const int64_t m = 29, n = 45, k = 70;
        const Operand a(m, k, format, 1, {.layout = a_layout, .padding = 5, .misalign = 3});
        const Operand b(n, k, format, 2, {.layout = b_layout, .padding = 3, .misalign = 1});
        const int64_t stride = n + 7;
        std::vector<float> output(static_cast<size_t>(m * stride + 1), 99.0f);
        gemm({.a = a.view(),
              .b = b.view(),
              .m = m,
              .n = n,
              .k = k,
              .output = output.data() + 1,
              .output_stride = stride});
        const Exact exact = exact_product(a, b, m, n, k);
        EXPECT_EQ(output[0], 99.0f);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < stride; ++j) {
            const float actual = output[static_cast<size_t>(1 + i * stride + j)];
            const size_t index = static_cast<size_t>(i * n + j);
            if (j >= n) {
              EXPECT_EQ(actual, 99.0f);
            } else {
              EXPECT_PRED3(within, actual, exact.value[index], exact.tolerance[index]);
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, NanAndInfReachTheirRowsAndColumnsOnly) {
  const int64_t m = 19, n = 37, k = 50;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : kOperandFormats) {
      SCOPED_TRACE(describe(format, format, m, n, k, isa));
      Operand a(m, k, format, 1), b(n, k, format, 2);
      const bool has_inf = format != Format::kE4m3;
      a.set_code(4, 7, encode_reference(format, std::numeric_limits<float>::quiet_NaN()));
      if (has_inf) b.set_code(33, 49, encode_reference(format, std::numeric_limits<float>::infinity()));
      const std::vector<float> output = product(a, b, m, n, k);
      const Exact exact = exact_product(a, b, m, n, k);
      for (int64_t i = 0; i < m * n; ++i) {
        const float actual = output[static_cast<size_t>(i)];
        if (i / n == 4) {
          EXPECT_TRUE(std::isnan(actual));
        } else if (has_inf && i % n == 33) {
          EXPECT_FALSE(std::isfinite(actual));
        } else {
          EXPECT_PRED3(within, actual, exact.value[static_cast<size_t>(i)], exact.tolerance[static_cast<size_t>(i)]);
        }
      }
    }
  }
}

// Not NaN, whatever an instruction set makes of the other factor.
TEST(Gemm, InfTimesNumbersOfOneSignIsInf) {
  const int64_t m = 3, n = 64, k = 40;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kFp16, Format::kBf16, Format::kE5m2}) {
      Operand a(m, k, format, 1), b(n, k, format, 2);
      for (int64_t i = 0; i < n * k; ++i) b.set_code(i / k, i % k, encode_reference(format, i % 2 == 0 ? 1.0f : 1.25f));
      a.set_code(0, 11, encode_reference(format, std::numeric_limits<float>::infinity()));
      a.set_code(1, 20, encode_reference(format, -std::numeric_limits<float>::infinity()));
      const std::vector<float> output = product(a, b, m, n, k);
      for (int64_t i = 0; i < 2 * n; ++i) {
        const double infinity = std::numeric_limits<double>::infinity();
        ASSERT_EQ(output[static_cast<size_t>(i)], i < n ? infinity : -infinity)
            << describe(format, format, m, n, k, isa);
      }
    }
  }
}

// Packed, the panels of B follow each other: one ends amid a step of the kernel, the next begins with NaN.
TEST(Gemm, NanInBReachesItsColumnOnly) {
  const std::pair<Format, std::array<uint32_t, 2>> kNans[] = {{Format::kE4m3, {0x7f, 0xff}},
                                                              {Format::kE5m2, {0x7f, 0xff}},
                                                              {Format::kBf16, {0x7fc0, 0xffc0}},
                                                              {Format::kFp16, {0x7e00, 0xfe00}}};
  const int64_t m = 19, n = 70, k = 50;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const auto& [format, nans] : kNans) {
      for (uint32_t nan : nans) {
        const Format a_format = format::is_fp8(format) ? Format::kBf16 : format;
        const Operand a(m, k, a_format, 1);
        Operand b(n, k, format, 2);
        b.set_code(33, 49, nan);
        b.set_code(66, 0, nan);
        std::vector<char> packed(gemm_packed_b_bytes(b.view(), n, k));
        gemm_pack_b(b.view(), n, k, packed.data());
        for (int64_t rows : {int64_t{1}, int64_t{2}, int64_t{5}, m}) {
          for (const void* packed_b : {static_cast<const void*>(nullptr), static_cast<const void*>(packed.data())}) {
            const std::vector<float> output = product(a, b, rows, n, k, {}, packed_b);
            for (int64_t i = 0; i < rows * n; ++i) {
              ASSERT_EQ(std::isnan(output[static_cast<size_t>(i)]), i % n == 33 || i % n == 66)
                  << describe(a_format, format, rows, n, k, isa) << (packed_b == nullptr ? "" : " packed");
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, SubnormalAndLargestValuesAreWithinTheBound) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : kOperandFormats) {
      const int64_t m = 16, n = 34, k = 40;
      Operand a(m, k, format, 1), b(n, k, format, 2);
      for (int64_t i = 0; i < k; ++i) {
        a.set_code(3, i, 1);                                                     // the smallest subnormal
        if (format::is_fp8(format)) b.set_code(5, i, i % 2 == 0 ? 0x7b : 0xfb);  // the largest of E5M2; 352 in E4M3
        a.set_code(6, i, 0);
      }
      EXPECT_TRUE(all_within(product(a, b, m, n, k), exact_product(a, b, m, n, k))) << static_cast<int>(format);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing
