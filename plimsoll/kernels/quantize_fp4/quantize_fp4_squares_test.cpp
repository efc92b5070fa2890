#include <gtest/gtest.h>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4_oracle.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using format::Fp4Scaling;
using testing::Line;
using testing::Matrix;

struct Squares {
  explicit Squares(const Matrix& x)
      : codes_stride((x.cols + 1) / 2 + 1),
        transposed_stride((x.rows + 1) / 2 + 2),
        scale_stride((x.cols + 15) / 16 + 1),
        codes(static_cast<size_t>(x.rows * codes_stride + 1), 0xee),
        transposed(static_cast<size_t>(x.cols * transposed_stride + 1), 0xee),
        scale(static_cast<size_t>((x.rows + 15) / 16 * scale_stride), 0xee) {}
  bool operator==(const Squares&) const = default;

  int64_t codes_stride, transposed_stride, scale_stride;
  std::vector<uint8_t> codes, transposed, scale;
  float tensor_scale = -1, amax = -1;
  int64_t non_finite_blocks = -1;
};

Squares quantize(const Matrix& x, Fp4Scaling scaling, const float* tensor_amax = nullptr) {
  Squares squares(x);
  quantize_fp4_squares({.x = x.data(),
                        .x_format = x.format,
                        .rows = x.rows,
                        .cols = x.cols,
                        .x_stride = x.stride,
                        .scaling = scaling,
                        .codes = squares.codes.data(),
                        .codes_stride = squares.codes_stride,
                        .transposed = squares.transposed.data(),
                        .transposed_stride = squares.transposed_stride,
                        .scale = squares.scale.data(),
                        .scale_stride = squares.scale_stride,
                        .tensor_amax = tensor_amax,
                        .tensor_scale = &squares.tensor_scale,
                        .amax = &squares.amax,
                        .non_finite_blocks = &squares.non_finite_blocks});
  return squares;
}

uint8_t code_at(const std::vector<uint8_t>& codes, int64_t stride, int64_t line, int64_t i) {
  const uint8_t byte = codes[static_cast<size_t>(line * stride + i / 2)];
  return i % 2 == 0 ? byte & 15 : byte >> 4;
}

void expect_squares(const Matrix& x, Fp4Scaling scaling, const float* tensor_amax = nullptr) {
  const Squares squares = quantize(x, scaling, tensor_amax);
  float amax = 0;
  std::vector<Line> lines;
  for (int64_t row = 0; row < x.rows; ++row) {
    lines.push_back(row_of_matrix(x, row));
    amax = testing::larger_amax(amax, testing::amax_of(lines.back()));
  }
  ASSERT_EQ(std::bit_cast<uint32_t>(squares.amax), std::bit_cast<uint32_t>(amax));
  const float encode_scale = format::Nvfp4::encode_scale(tensor_amax != nullptr ? *tensor_amax : amax, scaling);
  ASSERT_EQ(squares.tensor_scale, 1.0f / encode_scale);
  int64_t non_finite = 0;
  for (int64_t row = 0; row < x.rows; row += 16) {
    const int64_t end = std::min<int64_t>(row + 16, x.rows);
    const std::vector<Line> band(lines.begin() + row, lines.begin() + end);
    for (int64_t col = 0; col < x.cols; col += 16) {
      const auto first = static_cast<size_t>(col);
      const uint8_t scale = testing::scale_of(band, first, scaling, encode_scale);
      ASSERT_EQ(squares.scale[static_cast<size_t>(row / 16 * squares.scale_stride + col / 16)], scale)
          << row << ", " << col;
      float of_square = 0;
      for (const Line& line : band)
        of_square = testing::larger_amax(of_square, testing::amax_of(line, first, first + 16));
      non_finite += std::isfinite(of_square) ? 0 : 1;
      for (int64_t r = row; r < end; ++r) {
        for (int64_t c = col; c < std::min<int64_t>(col + 16, x.cols); ++c) {
          const uint8_t code = testing::code_of(x.at(r, c), scale, scaling, encode_scale, nullptr);
          ASSERT_EQ(code_at(squares.codes, squares.codes_stride, r, c), code) << r << ", " << c;
          ASSERT_EQ(code_at(squares.transposed, squares.transposed_stride, c, r), code) << r << ", " << c;
        }
      }
    }
  }
  ASSERT_EQ(squares.non_finite_blocks, non_finite);
  for (int64_t row = 0; row < x.rows; ++row) {
    ASSERT_EQ(squares.codes[static_cast<size_t>((row + 1) * squares.codes_stride - 1)], 0xee);
  }
  for (int64_t col = 0; col < x.cols; ++col) {
    ASSERT_EQ(squares.transposed[static_cast<size_t>((col + 1) * squares.transposed_stride - 1)], 0xee);
  }
}

TEST(QuantizeFp4Squares, GiveRowsAndColumnsTheSameCodes) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{0, 3}, {3, 0}, {1, 1}, {15, 17}, {16, 16}, {33, 48}, {130, 515}, {257, 100}}) {
      for (const Fp4Scaling scaling : {Fp4Scaling::kNvfp4, Fp4Scaling::kFourOverSix}) {
        for (const Format format : {Format::kFp32, Format::kBf16}) {
          SCOPED_TRACE(testing::name_of(format, rows, cols, scaling, isa));
          ASSERT_NO_FATAL_FAILURE(expect_squares(Matrix(format, rows, cols), scaling));
        }
        const float amax = 300.0f;
        SCOPED_TRACE(testing::name_of(Format::kFp32, rows, cols, scaling, isa));
        ASSERT_NO_FATAL_FAILURE(expect_squares(Matrix(Format::kFp32, rows, cols, false), scaling, &amax));
      }
    }
  }
}

TEST(QuantizeFp4Squares, AreTheSameForAnyThreadCount) {
  const Matrix x(Format::kBf16, 300, 1100);
  const Squares expected = quantize(x, Fp4Scaling::kFourOverSix);
  for (const int threads : {1, 2, 5}) {
    const testing::ScopedThreads scope(threads);
    EXPECT_EQ(quantize(x, Fp4Scaling::kFourOverSix), expected) << threads;
  }
}

}  // namespace
}  // namespace plimsoll::kernels
