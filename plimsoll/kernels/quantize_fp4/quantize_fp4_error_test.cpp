// The statistic of a quantization to E2M1 against its definition, in double, from the codes and scales that came out.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4_oracle.h"

namespace plimsoll::kernels::quantize_fp4_error_test {
namespace {

using format::Format;
using format::Fp4Scaling;
using testing::Line;
using testing::Matrix;

// Numbers whose squares are FP32's normal numbers in any units here.
Matrix ordinary(Format format, int64_t rows, int64_t cols) {
  Matrix x(format, rows, cols);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const float magnitude = std::fabs(x.at(row, col));
      if (magnitude > 0 && magnitude < 0x1p-16f) x.set(row, col, 0x1p-16f);
    }
  }
  return x;
}

// Codes of the lines of a matrix, and what they lose.
struct Codes {
  bool by_row = true;
  int64_t height = 1;  // lines that share scales
  std::vector<Line> lines;
  int64_t bytes = 0, blocks = 0;
  std::vector<uint8_t> codes, scale;
  QuantizeStatistic statistic = {-1, -1, -1, -1, -1};
};

Codes with_memory(const Matrix& x, Fp4Scaling scaling, const Fp4Rotation& rotation, bool by_row, int64_t height) {
  Codes result{.by_row = by_row, .height = height, .lines = {}, .codes = {}, .scale = {}};
  const int64_t lines = by_row ? x.rows : x.cols, block = format::fp4_block(scaling);
  for (int64_t i = 0; i < lines; ++i) {
    result.lines.push_back(testing::rotated(by_row ? row_of_matrix(x, i) : column_of_matrix(x, i), rotation));
  }
  const auto places = static_cast<int64_t>(result.lines.front().size());
  result.bytes = (places + 1) / 2;
  result.blocks = (places + block - 1) / block;
  result.codes.resize(static_cast<size_t>(lines * result.bytes));
  result.scale.resize(static_cast<size_t>(lines * result.blocks));
  return result;
}

Codes quantized(const Matrix& x, Fp4Scaling scaling, const Fp4Rotation& rotation, bool by_row, bool stochastic,
                bool measures = true) {
  Codes result = with_memory(x, scaling, rotation, by_row, 1);
  QuantizeFp4 args = testing::quantization_of(x, scaling);
  (by_row ? args.by_row : args.by_column) = {.codes = result.codes.data(),
                                             .codes_stride = result.bytes,
                                             .scale = result.scale.data(),
                                             .scale_stride = result.blocks,
                                             .rotation = rotation,
                                             .noise = {.stochastic = stochastic, .seed = 3, .step = 4},
                                             .statistic = measures ? &result.statistic : nullptr};
  quantize_fp4(args);
  return result;
}

Codes quantized_squares(const Matrix& x, Fp4Scaling scaling) {
  Codes result = with_memory(x, scaling, {}, true, 16);
  quantize_fp4_squares({.x = x.data(),
                        .x_format = x.format,
                        .rows = x.rows,
                        .cols = x.cols,
                        .x_stride = x.stride,
                        .scaling = scaling,
                        .codes = result.codes.data(),
                        .codes_stride = result.bytes,
                        .scale = result.scale.data(),
                        .scale_stride = result.blocks,
                        .statistic = &result.statistic});
  return result;
}

struct Classes {
  std::array<double, 64> error = {}, squares = {};
  void add(size_t of, double left, double y) {
    error[of] += left * left;
    squares[of] += y * y;
  }
  double mean() const {
    double sum = 0, classes = 0;
    for (size_t i = 0; i < error.size(); ++i) {
      sum += squares[i] == 0 ? 0 : error[i] / squares[i];
      classes += squares[i] == 0 ? 0 : 1;
    }
    return sum / classes;
  }
};

// The definition.
QuantizeStatistic expected_of(const Codes& codes, Fp4Scaling scaling) {
  Classes columns, rows;
  double saturated = 0, flushed = 0, nonzero = 0;
  float amax = 0;
  for (const Line& line : codes.lines) amax = testing::larger_amax(amax, testing::amax_of(line));
  const float encode_scale = format::is_nvfp4(scaling) ? format::Nvfp4::encode_scale(amax, scaling) : 1.0f;
  for (size_t l = 0; l < codes.lines.size(); ++l) {
    for (size_t i = 0; i < codes.lines[l].size(); ++i) {
      const float x = codes.lines[l][i];
      const size_t block = i / static_cast<size_t>(format::fp4_block(scaling));
      const uint8_t scale =
          codes.scale[l / static_cast<size_t>(codes.height) * static_cast<size_t>(codes.blocks) + block];
      const auto code =
          static_cast<uint8_t>(codes.codes[l * static_cast<size_t>(codes.bytes) + i / 2] >> (i % 2 * 4) & 15);
      const bool nvfp4 = format::is_nvfp4(scaling);
      const double unit = nvfp4 ? double{format::E4m3::decode(scale)} : double{format::E8m0::decode(scale)};
      const double y{nvfp4 ? x * encode_scale : x};
      const double left = y - double{format::E2m1::decode(code)} * unit;
      columns.add((codes.by_row ? i : l) % 64, left, y);
      rows.add((codes.by_row ? l : i) % 64, left, y);
      if (x == 0) continue;
      ++nonzero;
      flushed += (code & 7) == 0 ? 1 : 0;
      saturated += std::fabs(y) > 6 * unit ? 1 : 0;
    }
  }
  double all_error = 0, all_squares = 0;
  for (size_t i = 0; i < 64; ++i) {
    all_error += columns.error[i];
    all_squares += columns.squares[i];
  }
  if (all_squares == 0) return {};
  return {.error = static_cast<float>(std::sqrt(columns.mean())),
          .norm_error = static_cast<float>(std::sqrt(all_error / all_squares)),
          .saturated = static_cast<float>(saturated / nonzero),
          .flushed = static_cast<float>(flushed / nonzero),
          .row_error = static_cast<float>(std::sqrt(rows.mean()))};
}

// Sums of positive terms: a class of a tile has at most 65536 / 64 = 1024 of them, each of two roundings (y - q, whose
// square counts twice, and the fma), and the root halves what is relative. The result is rounded once.
constexpr double kRelative = 0x1p-24 * (1024 + 4) / 2 + 0x1p-24;

void expect_near(const QuantizeStatistic& got, const QuantizeStatistic& expected, const std::string& name) {
  EXPECT_NEAR(got.error, expected.error, kRelative * double{expected.error}) << name;
  EXPECT_NEAR(got.norm_error, expected.norm_error, kRelative * double{expected.norm_error}) << name;
  EXPECT_NEAR(got.row_error, expected.row_error, kRelative * double{expected.row_error}) << name;
  EXPECT_EQ(got.saturated, expected.saturated) << name;
  EXPECT_EQ(got.flushed, expected.flushed) << name;
}

std::array<uint32_t, 5> words(const QuantizeStatistic& statistic) {
  return std::bit_cast<std::array<uint32_t, 5>>(statistic);
}

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 5}, {33, 70}, {130, 16}, {16, 513}, {261, 1100}};
constexpr int64_t kRotations[] = {0, 16, 128};

template <class Check>
void over_cases(Check check) {
  for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (const Shape& shape : kShapes) {
      const Matrix x = ordinary(format, shape.rows, shape.cols);
      for (const Fp4Scaling scaling : testing::kScalings) check(x, scaling);
    }
  }
}

TEST(QuantizeFp4Statistic, AgreesWithItsDefinition) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    over_cases([&](const Matrix& x, Fp4Scaling scaling) {
      const std::string name = testing::name_of(x.format, x.rows, x.cols, scaling, isa);
      for (const int64_t rotation : kRotations) {
        for (const bool by_row : {true, false}) {
          const Codes codes = quantized(x, scaling, {rotation, 7, 0}, by_row, /*stochastic=*/rotation == 16);
          expect_near(codes.statistic, expected_of(codes, scaling), name + " " + std::to_string(rotation));
        }
      }
      if (!format::is_nvfp4(scaling) || scaling == Fp4Scaling::kMsEden) return;
      const Codes squares = quantized_squares(x, scaling);
      expect_near(squares.statistic, expected_of(squares, scaling), name + " squares");
    });
  }
}

TEST(QuantizeFp4Statistic, BitsAreTheSameOnEveryInstructionSetAndForAnyThreads) {
  over_cases([](const Matrix& x, Fp4Scaling scaling) {
    for (const bool by_row : {true, false}) {
      const auto of = [&] { return words(quantized(x, scaling, {16, 7, 0}, by_row, true).statistic); };
      const auto expected = of();
      for (const runtime::Isa isa : testing::isas_present()) {
        const runtime::ScopedIsa scope(isa);
        for (const int threads : {1, 3}) {
          const testing::ScopedThreads set(threads);
          EXPECT_EQ(of(), expected);
        }
      }
    }
  });
}

TEST(QuantizeFp4Statistic, CodesAreTheSameWithAndWithoutIt) {
  const Matrix x = ordinary(Format::kFp32, 261, 1100);
  const Codes measured = quantized(x, Fp4Scaling::kNvfp4, {16, 7, 0}, false, true);
  const Codes alone = quantized(x, Fp4Scaling::kNvfp4, {16, 7, 0}, false, true, /*measures=*/false);
  EXPECT_EQ(alone.codes, measured.codes);
  EXPECT_EQ(alone.scale, measured.scale);
}

TEST(QuantizeFp4Statistic, APowerOfTwoChangesNothingOfMxfp4) {
  const auto statistic_of = [](float factor) {
    Matrix x = ordinary(Format::kFp32, 40, 96);
    for (int64_t i = 0; i < 40 * 96; ++i) x.set(i / 96, i % 96, x.at(i / 96, i % 96) * factor);
    return words(quantized(x, Fp4Scaling::kMxfp4, {}, false, false).statistic);
  };
  for (const float factor : {0x1p-100f, 0x1p100f, 0x1p110f}) EXPECT_EQ(statistic_of(factor), statistic_of(1)) << factor;
}

TEST(QuantizeFp4Statistic, RowsBesideOneOfOutliersShowTheirErrors) {
  const auto error_of = [](float factor) {
    Matrix x(Format::kFp32, 64, 256);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < 64; ++row) {
      for (int64_t col = 0; col < 256; ++col) x.set(row, col, normal(random) * (row == 3 ? factor : 1.0f));
    }
    return quantized_squares(x, Fp4Scaling::kNvfp4).statistic.row_error;
  };
  EXPECT_LT(error_of(1), 0.15f);
  EXPECT_GT(error_of(0x1p10f), 0.45f);  // 15 of 64 rows are lost: the root of their share is 0.48
}

TEST(QuantizeFp4Statistic, WhatIsNotFiniteIsNaN) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Fp4Scaling scaling : testing::kScalings) {
      Matrix x = ordinary(Format::kBf16, 17, 33);
      x.set(16, 32, std::numeric_limits<float>::infinity());
      for (const bool by_row : {true, false}) {
        EXPECT_TRUE(std::isnan(quantized(x, scaling, {}, by_row, false).statistic.error));
      }
    }
  }
}

TEST(QuantizeFp4Statistic, ZerosHaveNoError) {
  Matrix x(Format::kFp32, 20, 40);
  for (int64_t i = 0; i < 800; ++i) x.set(i / 40, i % 40, i % 2 == 0 ? 0.0f : -0.0f);
  EXPECT_EQ(words(quantized(x, Fp4Scaling::kNvfp4, {}, true, false).statistic), words({}));
}

}  // namespace
}  // namespace plimsoll::kernels::quantize_fp4_error_test
