// E2M1 codes with block scales against values by the definition of the formats, in double, where they are exact.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::dequantize_fp4_test {
namespace {

using format::Format;

constexpr Format kScaleFormats[] = {Format::kE4m3, Format::kE8m0};
constexpr Format kOutputFormats[] = {Format::kFp32, Format::kBf16, Format::kFp16};

int64_t block_of(Format scale_format) { return scale_format == Format::kE4m3 ? 16 : 32; }

double value_of_code(int code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code];
}

double value_of_scale(Format format, int code) {
  if (format == Format::kE8m0) return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127);
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

// The product in FP32, code by block scale first, then one rounding.
uint32_t expected_element(int code, Format scale_format, int scale, float tensor_scale, Format output_format) {
  const auto block_value = static_cast<float>(value_of_code(code) * value_of_scale(scale_format, scale));
  return format::encode(output_format, static_cast<float>(double{block_value} * double{tensor_scale}));
}

void expect_element(uint32_t got, uint32_t expected, Format format) {
  if (std::isnan(format::decode(format, expected))) {
    ASSERT_TRUE(std::isnan(format::decode(format, got))) << got;
  } else {
    ASSERT_EQ(got, expected);
  }
}

// Each row has all codes, in blocks of one scale.
TEST(DequantizeE2m1, EveryCodeUnderEveryScaleRoundsOnce) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format scale_format : kScaleFormats) {
      const int64_t cols = block_of(scale_format);
      std::vector<uint8_t> codes, scales;
      for (int scale = 0; scale < 256; ++scale) {
        scales.push_back(static_cast<uint8_t>(scale));
        for (int64_t i = 0; i < cols / 2; ++i) codes.push_back(static_cast<uint8_t>((2 * i & 15) | ((2 * i + 1) << 4)));
      }
      for (const float tensor_scale : {1.0f, 0.37f, 3e-39f, 1e30f, -0.7f, std::nanf("")}) {
        for (const Format output_format : kOutputFormats) {
          testing::Array output(output_format, 256 * cols);
          dequantize({.codes = codes.data(),
                      .format = Format::kE2m1,
                      .rows = 256,
                      .cols = cols,
                      .codes_stride = cols,
                      .scale = {.data = scales.data(),
                                .format = scale_format,
                                .block_rows = 1,
                                .block_cols = cols,
                                .row_stride = 1,
                                .col_stride = 1,
                                .tensor = &tensor_scale},
                      .output = output.data(),
                      .output_format = output_format,
                      .output_stride = cols});
          ASSERT_TRUE(output.guards_intact());
          for (int64_t i = 0; i < 256 * cols; ++i) {
            const uint32_t expected = expected_element(static_cast<int>(i % 16), scale_format,
                                                       static_cast<int>(i / cols), tensor_scale, output_format);
            ASSERT_NO_FATAL_FAILURE(expect_element(output.code(i), expected, output_format))
                << "code " << i % 16 << " scale " << i / cols << " tensor scale " << tensor_scale << " to "
                << format::info(output_format).name << " on " << runtime::name(isa);
          }
        }
      }
    }
  }
}

struct Shape {
  int64_t rows, cols;
};

// Blocks of block_rows rows; a tensor scale for each row, or one, or none.
void expect_matrix(Shape shape, Format scale_format, int64_t block_rows, int64_t tensor_scales, Format output_format) {
  const auto [rows, cols] = shape;
  std::mt19937 random(static_cast<uint32_t>(rows * 31 + cols));
  const int64_t block = block_of(scale_format), codes_stride = (cols + 1) / 2 * 2 + 6, output_stride = cols + 3;
  const int64_t row_stride = (cols + block - 1) / block + 2;
  std::vector<uint8_t> codes(static_cast<size_t>(rows * codes_stride / 2 + 1));
  for (uint8_t& pair : codes) pair = static_cast<uint8_t>(random());
  std::vector<uint8_t> scales(static_cast<size_t>((rows / block_rows + 1) * row_stride));
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random());
  std::vector<float> tensor(static_cast<size_t>(std::max<int64_t>(rows, 1)));
  for (float& scale : tensor) scale = static_cast<float>(1 + random() % 1000) / 700.0f;
  testing::Array output(output_format, rows * output_stride);
  const std::vector<uint32_t> untouched = {output.code(0)};
  dequantize({.codes = codes.data() + 1,
              .format = Format::kE2m1,
              .rows = rows,
              .cols = cols,
              .codes_stride = codes_stride,
              .scale = {.data = scales.data(),
                        .format = scale_format,
                        .block_rows = block_rows,
                        .block_cols = block,
                        .row_stride = row_stride,
                        .col_stride = 1,
                        .tensor = tensor_scales == 0 ? nullptr : tensor.data(),
                        .tensor_row_stride = tensor_scales > 1 ? 1 : 0},
              .output = output.data(),
              .output_format = output_format,
              .output_stride = output_stride});
  ASSERT_TRUE(output.guards_intact());
  for (int64_t i = 0; i < rows * output_stride; ++i) {
    const int64_t row = i / output_stride, col = i % output_stride;
    if (col >= cols) {
      ASSERT_EQ(output.code(i), untouched[0]);
      continue;
    }
    const uint8_t pair = codes[static_cast<size_t>(1 + row * codes_stride / 2 + col / 2)];
    const uint8_t scale = scales[static_cast<size_t>(row / block_rows * row_stride + col / block)];
    const float tensor_scale = tensor_scales == 0 ? 1.0f : tensor[static_cast<size_t>(tensor_scales > 1 ? row : 0)];
    const uint32_t expected =
        expected_element(col % 2 == 0 ? pair & 15 : pair >> 4, scale_format, scale, tensor_scale, output_format);
    ASSERT_NO_FATAL_FAILURE(expect_element(output.code(i), expected, output_format)) << row << ", " << col;
  }
}

TEST(DequantizeE2m1, FindsTheScalesOfEveryElement) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format scale_format : kScaleFormats) {
      for (const Shape& shape :
           {Shape{0, 5}, {5, 0}, {1, 1}, {3, 15}, {2, 16}, {3, 17}, {1, 31}, {2, 33}, {70, 67}, {33, 512}, {2, 2049}}) {
        for (const int64_t block_rows : {1, 16}) {
          for (const int64_t tensor_scales : {0, 1, 2}) {
            for (const Format output_format : kOutputFormats) {
              SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::to_string(shape.rows) + " x " +
                           std::to_string(shape.cols) + " in blocks of " + std::to_string(block_rows) + " rows to " +
                           std::string(format::info(output_format).name));
              ASSERT_NO_FATAL_FAILURE(expect_matrix(shape, scale_format, block_rows, tensor_scales, output_format));
            }
          }
        }
      }
    }
  }
}

TEST(DequantizeE2m1, IsTheSameForAnyThreadCount) {
  for (const int threads : {1, 2, 3, 7}) {
    const testing::ScopedThreads scope(threads);
    for (const Shape& shape : {Shape{300, 515}, {2, 70001}}) {
      ASSERT_NO_FATAL_FAILURE(expect_matrix(shape, Format::kE4m3, 1, 1, Format::kBf16)) << threads;
    }
  }
}

// Codes come back as what was quantized, within half a step, and bad blocks as NaN.
TEST(DequantizeE2m1, GivesWhatWasQuantizedWithinHalfAStep) {
  constexpr int64_t kRows = 19, kCols = 83;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kCols), output(kRows * kCols);
  for (float& value : x) value = normal(random);
  x[5 * kCols + 40] = std::numeric_limits<float>::infinity();
  for (const format::Fp4Scaling scaling : {format::Fp4Scaling::kNvfp4, format::Fp4Scaling::kMxfp4}) {
    const int64_t block = format::fp4_block(scaling), blocks = (kCols + block - 1) / block;
    std::vector<uint8_t> codes(kRows * ((kCols + 1) / 2)), scales(static_cast<size_t>(kRows * blocks));
    const float amax = 5.0f;
    float tensor_scale = 0;
    quantize_fp4({.x = x.data(),
                  .rows = kRows,
                  .cols = kCols,
                  .x_stride = kCols,
                  .scaling = scaling,
                  .by_row = {.codes = codes.data(),
                             .codes_stride = (kCols + 1) / 2,
                             .scale = scales.data(),
                             .scale_stride = blocks,
                             .tensor_amax = &amax,
                             .tensor_scale = &tensor_scale}});
    dequantize({.codes = codes.data(),
                .format = Format::kE2m1,
                .rows = kRows,
                .cols = kCols,
                .codes_stride = (kCols + 1) / 2 * 2,
                .scale = {.data = scales.data(),
                          .format = format::fp4_scale_format(scaling),
                          .block_rows = 1,
                          .block_cols = block,
                          .row_stride = blocks,
                          .col_stride = 1,
                          .tensor = &tensor_scale},
                .output = output.data(),
                .output_stride = kCols});
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      const int64_t row = i / kCols, first = i % kCols / block;
      if (row == 5 && first == 40 / block) {
        ASSERT_TRUE(std::isnan(output[static_cast<size_t>(i)]));
        continue;
      }
      // Codes are at most 2 apart, of 4 and 6, and the nearest is at most 1 away.
      const uint8_t scale = scales[static_cast<size_t>(row * blocks + first)];
      const double step = value_of_scale(format::fp4_scale_format(scaling), scale) * double{tensor_scale};
      // A scale rounded down lets the block's amax saturate: by 1 / 16 of 6 at most.
      ASSERT_LE(std::fabs(output[static_cast<size_t>(i)] - x[static_cast<size_t>(i)]), step * 1.0001) << i;
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::dequantize_fp4_test
