// Statistics of a quantization, against sums in double over the codes that the kernel wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Content;
using testing::TestMatrix;

struct Granularity {
  int64_t block_rows, block_cols;
  Format scale_format = Format::kFp32;
};
constexpr Granularity kGranularities[] = {
    {1, 0}, {0, 0}, {1, 128}, {128, 128}, {1, 32, Format::kE8m0}, {32, 1, Format::kE8m0}};

// Codes with and without a statistic.
struct Quantized {
  std::vector<uint8_t> codes, codes_alone;
  std::vector<float> inv_scale = {};  // of each element
  QuantizeStatistic statistic = {};
};

Quantized quantize_with(const TestMatrix& x, Format format, float scale) {
  const auto size = static_cast<size_t>(x.rows * x.cols);
  Quantized result{.codes = std::vector<uint8_t>(size), .codes_alone = std::vector<uint8_t>(size)};
  QuantizeTensor args{.x = x.data(),
                      .x_format = x.format,
                      .rows = x.rows,
                      .cols = x.cols,
                      .x_stride = x.stride,
                      .codes = result.codes_alone.data(),
                      .format = format,
                      .codes_stride = x.cols,
                      .scale = &scale};
  quantize_tensor(args);
  args.codes = result.codes.data();
  args.statistic = &result.statistic;
  quantize_tensor(args);
  result.inv_scale.assign(size, 1.0f / scale);
  return result;
}

Quantized quantize_blocks_with(const TestMatrix& x, Format format, const Granularity& blocks) {
  const auto size = static_cast<size_t>(x.rows * x.cols);
  const int64_t block_rows = blocks.block_rows > 0 ? blocks.block_rows : std::max<int64_t>(x.rows, 1);
  const int64_t block_cols = blocks.block_cols > 0 ? blocks.block_cols : std::max<int64_t>(x.cols, 1);
  const int64_t down = (x.rows + block_rows - 1) / block_rows, across = (x.cols + block_cols - 1) / block_cols;
  Quantized result{.codes = std::vector<uint8_t>(size), .codes_alone = std::vector<uint8_t>(size)};
  std::vector<float> scale(static_cast<size_t>(down * across) + 1);
  QuantizeBlocks args{.x = x.data(),
                      .x_format = x.format,
                      .rows = x.rows,
                      .cols = x.cols,
                      .x_stride = x.stride,
                      .codes = result.codes_alone.data(),
                      .format = format,
                      .codes_stride = x.cols,
                      .block_rows = blocks.block_rows,
                      .block_cols = blocks.block_cols,
                      .scale = scale.data(),
                      .scale_format = blocks.scale_format,
                      .scale_stride = across};
  quantize_blocks(args);
  args.codes = result.codes.data();
  args.statistic = &result.statistic;
  quantize_blocks(args);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) {
      const auto block = static_cast<size_t>(row / block_rows * across + col / block_cols);
      const float own = blocks.scale_format == Format::kE8m0
                            ? format::decode(Format::kE8m0, reinterpret_cast<const uint8_t*>(scale.data())[block])
                            : scale[block];
      result.inv_scale.push_back(1.0f / own);
    }
  }
  return result;
}

struct Expected {
  double error = 0, norm_error = 0, saturated = 0, flushed = 0, row_error = 0;
};

// The definitions, element by element.
Expected expected_of(const TestMatrix& x, Format format, const Quantized& quantized) {
  std::array<double, 64> error = {}, squares = {}, row_error = {}, row_squares = {};
  double saturated = 0, flushed = 0, nonzero = 0;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) {
      const auto i = static_cast<size_t>(row * x.cols + col), column = static_cast<size_t>(col % 64);
      const double y = double{x.at(row, col) * quantized.inv_scale[i]};
      const double code = double{format::decode(format, quantized.codes[i])};
      const double unit = 1 / double{quantized.inv_scale[i]};
      error[column] += (y - code) * (y - code) * unit * unit;
      squares[column] += y * y * unit * unit;
      row_error[static_cast<size_t>(row % 64)] += (y - code) * (y - code) * unit * unit;
      row_squares[static_cast<size_t>(row % 64)] += y * y * unit * unit;
      if (x.at(row, col) == 0) continue;
      ++nonzero;
      if (std::fabs(y) > double{format::max_finite(format)}) ++saturated;
      if (code == 0) ++flushed;
    }
  }
  Expected result;
  double all_error = 0, all_squares = 0, classes = 0, row_classes = 0;
  for (size_t row = 0; row < 64; ++row) {
    if (row_squares[row] == 0) continue;
    result.row_error += row_error[row] / row_squares[row];
    ++row_classes;
  }
  for (size_t column = 0; column < 64; ++column) {
    if (squares[column] == 0) continue;
    result.error += error[column] / squares[column];
    all_error += error[column];
    all_squares += squares[column];
    ++classes;
  }
  if (classes == 0) return {};
  result.error = std::sqrt(result.error / classes);
  result.row_error = std::sqrt(result.row_error / row_classes);
  result.norm_error = std::sqrt(all_error / all_squares);
  result.saturated = saturated / nonzero;
  result.flushed = flushed / nonzero;
  return result;
}

// Sums of positive terms: a class of a tile has at most 65536 / 64 = 1024 of them, each of four roundings (y - q, the
// weight of its block and the product with it, whose squares count twice, and the fma), and the root halves what is relative.
// The result is rounded once.
constexpr double kRelative = 0x1p-24 * (1024 + 8) / 2 + 0x1p-24;

void expect_near(const QuantizeStatistic& got, const Expected& expected) {
  EXPECT_NEAR(double{got.error}, expected.error, kRelative * expected.error);
  EXPECT_NEAR(double{got.norm_error}, expected.norm_error, kRelative * expected.norm_error);
  EXPECT_NEAR(double{got.row_error}, expected.row_error, kRelative * expected.row_error);
  EXPECT_EQ(got.saturated, static_cast<float>(expected.saturated));
  EXPECT_EQ(got.flushed, static_cast<float>(expected.flushed));
}

void expect_same_bits(const QuantizeStatistic& got, const QuantizeStatistic& expected) {
  using Words = std::array<uint32_t, 5>;
  EXPECT_EQ(std::bit_cast<Words>(got), std::bit_cast<Words>(expected));
}

// Calls check(matrix, code format) for matrices of all input formats and shapes.
template <class Check>
void over_matrices(Content content, Check check) {
  for (const Format x_format : testing::kInputFormats) {
    for (const testing::Shape& shape : testing::kShapes) {
      const int64_t padding = shape.cols % 64 == 0 ? 0 : 3;  // without gaps the rows become one
      const TestMatrix x(x_format, shape.rows, shape.cols, padding, content);
      for (const Format format : testing::kCodeFormats) check(x, format);
    }
  }
}

constexpr float kScale = 0.37f;

// Numbers whose squares are FP32's normal numbers: 3e38 and 2^-140 are replaced.
TestMatrix ordinary(const TestMatrix& x) {
  TestMatrix result = x;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) {
      const float magnitude = std::fabs(x.at(row, col));
      if (magnitude > 0x1p20f) result.set(row, col, 100.0f);
      if (magnitude > 0 && magnitude < 0x1p-24f) result.set(row, col, 0x1p-24f);
    }
  }
  return result;
}

TEST(QuantizeStatisticTest, OneScaleAgreesWithItsDefinition) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    over_matrices(Content::kFinite, [](const TestMatrix& matrix, Format format) {
      const TestMatrix x = ordinary(matrix);
      const Quantized quantized = quantize_with(x, format, kScale);
      EXPECT_EQ(quantized.codes, quantized.codes_alone);
      expect_near(quantized.statistic, expected_of(x, format, quantized));
    });
  }
}

TEST(QuantizeStatisticTest, ScalesOfBlocksAgreeWithItsDefinition) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    over_matrices(Content::kFinite, [](const TestMatrix& matrix, Format format) {
      const TestMatrix x = ordinary(matrix);
      for (const Granularity& blocks : kGranularities) {
        const Quantized quantized = quantize_blocks_with(x, format, blocks);
        EXPECT_EQ(quantized.codes, quantized.codes_alone);
        expect_near(quantized.statistic, expected_of(x, format, quantized));
      }
    });
  }
}

TEST(QuantizeStatisticTest, BitsAreTheSameOnEveryInstructionSetAndForAnyThreads) {
  over_matrices(Content::kFinite, [](const TestMatrix& matrix, Format format) {
    const TestMatrix x = ordinary(matrix);
    const Quantized tensor = quantize_with(x, format, kScale);
    const Quantized blocks = quantize_blocks_with(x, format, {0, 0});
    for (const runtime::Isa isa : testing::isas_present()) {
      const runtime::ScopedIsa scope(isa);
      for (const int threads : {1, 3}) {
        const testing::ScopedThreads set(threads);
        expect_same_bits(quantize_with(x, format, kScale).statistic, tensor.statistic);
        expect_same_bits(quantize_blocks_with(x, format, {0, 0}).statistic, blocks.statistic);
      }
    }
  });
}

TEST(QuantizeStatisticTest, AnOutlierHidesTheErrorsOfItsOwnClassAlone) {
  TestMatrix x(Format::kFp32, 256, 256, 0, Content::kFinite);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) x.set(row, col, col == 5 ? 0x1p20f : normal(random));
  }
  const QuantizeStatistic statistic = quantize_with(x, Format::kE4m3, 0x1p20f / 448).statistic;
  EXPECT_LT(statistic.norm_error, 0x1p-5f);  // the rounding of the outlier, which is all that the norm sees
  // Most of the other numbers, in 63 of 64 classes, are below half the smallest code.
  EXPECT_GT(statistic.error, 0.5f);
  EXPECT_GT(statistic.flushed, 0.5f);
  EXPECT_EQ(statistic.saturated, 0.0f);
}

TEST(QuantizeStatisticTest, AnOutlierDoesNotHideTheColumnsOfItsBlock) {
  TestMatrix x(Format::kFp32, 64, 1024, 0, Content::kFinite);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) x.set(row, col, col == 5 ? 0x1p30f : normal(random));
  }
  // A class has 16 columns. One or two lie in the block and are lost, two in 63 classes of 1 x 128.
  EXPECT_NEAR(quantize_blocks_with(x, Format::kE4m3, {1, 128}).statistic.error, std::sqrt(2.0f / 16), 0.02f);
  EXPECT_NEAR(quantize_blocks_with(x, Format::kE4m3, {1, 32, Format::kE8m0}).statistic.error, std::sqrt(1.0f / 16 / 2),
              0.02f);
}

TEST(QuantizeStatisticTest, RowsThatAnOutlierLosesShow) {
  TestMatrix x(Format::kFp32, 256, 256, 0, Content::kFinite);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) x.set(row, col, normal(random) * (row == 7 ? 0x1p30f : 1.0f));
  }
  const QuantizeStatistic statistic = quantize_blocks_with(x, Format::kE4m3, {128, 128}).statistic;
  EXPECT_LT(statistic.error, 0x1p-4f);
  // A class has four rows, two of which lie in the outliers' blocks; the outliers hide the one beside them.
  EXPECT_NEAR(statistic.row_error, std::sqrt(63.0f / 64 / 2), 0.01f);
}

TEST(QuantizeStatisticTest, WhatIsNotFiniteIsNaN) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const runtime::Isa isa : testing::isas_present()) {
      const runtime::ScopedIsa scope(isa);
      TestMatrix x(Format::kBf16, 17, 33, 0, Content::kFinite);
      x.set(16, 32, bad);
      EXPECT_TRUE(std::isnan(quantize_with(x, Format::kE4m3, kScale).statistic.error));
      EXPECT_TRUE(std::isnan(quantize_blocks_with(x, Format::kE5m2, {1, 128}).statistic.error));
    }
  }
}

TEST(QuantizeStatisticTest, ZerosHaveNoError) {
  TestMatrix x(Format::kFp32, 5, 70, 0, Content::kFinite);
  for (int64_t i = 0; i < x.rows * x.cols; ++i) x.set(i / x.cols, i % x.cols, i % 2 == 0 ? 0.0f : -0.0f);
  expect_same_bits(quantize_with(x, Format::kE4m3, kScale).statistic, {});
}

}  // namespace
}  // namespace plimsoll::kernels
