#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels::quantize_blocks_test {
namespace {

using format::E8m0;
using format::Format;
using testing::Content;
using testing::TestMatrix;

struct Blocks {
  int64_t rows, cols;
};
constexpr Blocks kBlocks[] = {{0, 0}, {1, 0}, {0, 1}, {1, 128}, {128, 1}, {128, 128}, {1, 32}, {32, 1}, {7, 5}, {1, 1}};

struct Variant {
  Format scale_format;
  bool power_of_two;
  format::ScaleRounding rounding;
};
constexpr Variant kVariants[] = {{Format::kFp32, false, format::ScaleRounding::kUp},
                                 {Format::kFp32, true, format::ScaleRounding::kUp},
                                 {Format::kE8m0, false, format::ScaleRounding::kUp},
                                 {Format::kE8m0, false, format::ScaleRounding::kDown}};

struct Result {
  int64_t codes_stride, scale_stride;
  std::vector<uint8_t> codes, scale;  // scale: bytes of either format
  float amax;
};

Result quantize(const TestMatrix& x, Format format, Blocks blocks, const Variant& variant) {
  const int64_t scale_cols = blocks.cols > 0 ? (x.cols + blocks.cols - 1) / blocks.cols : 1;
  const int64_t scale_rows = blocks.rows > 0 ? (x.rows + blocks.rows - 1) / blocks.rows : 1;
  Result result;
  result.codes_stride = x.cols + 3;
  result.scale_stride = scale_cols + 2;
  result.codes.assign(static_cast<size_t>(x.rows * result.codes_stride), 0xee);
  result.scale.assign(static_cast<size_t>(scale_rows * result.scale_stride * format::bytes(variant.scale_format)),
                      0xee);
  quantize_blocks({.x = x.data(),
                   .x_format = x.format,
                   .rows = x.rows,
                   .cols = x.cols,
                   .x_stride = x.stride,
                   .codes = result.codes.data(),
                   .format = format,
                   .codes_stride = result.codes_stride,
                   .block_rows = blocks.rows,
                   .block_cols = blocks.cols,
                   .scale = result.scale.data(),
                   .scale_format = variant.scale_format,
                   .scale_stride = result.scale_stride,
                   .power_of_two = variant.power_of_two,
                   .rounding = variant.rounding,
                   .amax = &result.amax});
  return result;
}

// From the definition, in double where a power of two is wanted.
float expected_scale(float amax, float limit, const Variant& variant) {
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  if (variant.scale_format == Format::kFp32 && !variant.power_of_two) return std::max(amax / limit, FLT_MIN);
  const double smallest = variant.scale_format == Format::kE8m0 ? 0x1p-127 : 0x1p-126;
  if (variant.rounding == format::ScaleRounding::kDown) {
    const double exact = amax == 0 ? 0 : std::ldexp(1.0, std::ilogb(amax) - std::ilogb(limit));
    return static_cast<float>(std::max(exact, smallest));
  }
  double scale = smallest;
  while (scale * double{limit} < double{amax}) scale *= 2;
  return static_cast<float>(scale);
}

void expect_block(const TestMatrix& x, Format format, const Variant& variant, const Result& result, int64_t row,
                  int64_t col, int64_t rows, int64_t cols, int64_t scale_index) {
  const float amax = testing::expected_amax(x, row, col, rows, cols);
  const float expected = expected_scale(amax, format::max_finite(format), variant);
  float scale;
  if (variant.scale_format == Format::kE8m0) {
    scale = E8m0::decode(result.scale[static_cast<size_t>(scale_index)]);
  } else {
    __builtin_memcpy(&scale, &result.scale[static_cast<size_t>(scale_index) * 4], 4);
  }
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(scale));
  } else {
    ASSERT_EQ(scale, expected) << amax;
  }
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = col; c < col + cols; ++c) {
      const uint32_t code = result.codes[static_cast<size_t>(r * result.codes_stride + c)];
      const uint32_t wanted = std::isnan(expected) ? 0x7fu : format::encode(format, x.at(r, c) * (1.0f / expected));
      ASSERT_EQ(code, wanted) << x.at(r, c) << " at " << r << ", " << c;
    }
  }
}

void expect_blocks(const TestMatrix& x, Format format, Blocks blocks, const Variant& variant) {
  const Result result = quantize(x, format, blocks, variant);
  ASSERT_EQ(std::bit_cast<uint32_t>(result.amax), std::bit_cast<uint32_t>(testing::expected_amax(x)));
  const int64_t height = blocks.rows > 0 ? blocks.rows : std::max<int64_t>(x.rows, 1);
  const int64_t width = blocks.cols > 0 ? blocks.cols : std::max<int64_t>(x.cols, 1);
  for (int64_t row = 0; row < x.rows; row += height) {
    for (int64_t col = 0; col < x.cols; col += width) {
      const int64_t scale_index = row / height * result.scale_stride + col / width;
      ASSERT_NO_FATAL_FAILURE(expect_block(x, format, variant, result, row, col, std::min(height, x.rows - row),
                                           std::min(width, x.cols - col), scale_index));
    }
    for (int64_t col = x.cols; col < result.codes_stride && row + 1 < x.rows; ++col) {
      ASSERT_EQ(result.codes[static_cast<size_t>(row * result.codes_stride + col)], 0xee);
    }
  }
}

template <class Check>
void over_granularities(Format x_format, Check check) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [rows, cols] : testing::kShapes) {
      const TestMatrix x(x_format, rows, cols, 1, rows % 2 == 0 ? Content::kAll : Content::kFinite);
      for (const Blocks& blocks : kBlocks) {
        SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::to_string(rows) + " x " + std::to_string(cols) +
                     " in " + std::to_string(blocks.rows) + " x " + std::to_string(blocks.cols));
        ASSERT_NO_FATAL_FAILURE(check(x, blocks));
      }
    }
  }
}

TEST(QuantizeBlocks, ScalesAndCodesFollowTheDefinitionForEveryGranularity) {
  over_granularities(Format::kFp32, [](const TestMatrix& x, Blocks blocks) {
    for (const Variant& variant : kVariants) expect_blocks(x, Format::kE4m3, blocks, variant);
  });
  over_granularities(Format::kBf16,
                     [](const TestMatrix& x, Blocks blocks) { expect_blocks(x, Format::kE5m2, blocks, kVariants[0]); });
  over_granularities(Format::kFp16,
                     [](const TestMatrix& x, Blocks blocks) { expect_blocks(x, Format::kE5m2, blocks, kVariants[2]); });
}

TEST(QuantizeBlocks, GoldenMxBytes) {
  // One value leads each block of 32; the byte is that of the format's table.
  const float leaders[] = {448.0f, 449.0f, 256.0f, 1.0f, 0.875f, 0.8751f, 0.0f};
  const uint8_t bytes[] = {127, 128, 127, 119, 118, 119, 0};
  std::vector<float> x(32 * 7, 0.0f);
  for (size_t block = 0; block < 7; ++block) x[block * 32 + 5 * block] = -leaders[block];
  std::vector<uint8_t> codes(x.size()), scale(7);
  float amax = -1;
  quantize_blocks({.x = x.data(),
                   .rows = 1,
                   .cols = 32 * 7,
                   .x_stride = 32 * 7,
                   .codes = codes.data(),
                   .codes_stride = 32 * 7,
                   .block_rows = 1,
                   .block_cols = 32,
                   .scale = scale.data(),
                   .scale_format = Format::kE8m0,
                   .scale_stride = 7,
                   .amax = &amax});
  EXPECT_EQ(amax, 449.0f);
  for (size_t block = 0; block < 7; ++block) EXPECT_EQ(scale[block], bytes[block]) << leaders[block];
}

TEST(QuantizeBlocks, OneBadValueSpoilsItsBlockOnly) {
  TestMatrix x(Format::kFp32, 4, 256, 0, Content::kFinite);
  x.set(2, 130, -std::numeric_limits<float>::quiet_NaN());
  const Result result = quantize(x, Format::kE4m3, {1, 128}, kVariants[0]);
  EXPECT_TRUE(std::isnan(result.amax));
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t col = 0; col < 256; ++col) {
      const uint32_t code = result.codes[static_cast<size_t>(row * result.codes_stride + col)];
      ASSERT_EQ(code == 0x7f, row == 2 && col >= 128) << row << ", " << col;
    }
  }
}

TEST(QuantizeBlocks, LargeBlocksAreTheSameForAnyThreadCount) {
  const TestMatrix x(Format::kBf16, 300, 5000, 1, Content::kFinite), tall(Format::kFp32, 1100, 70, 1, Content::kAll);
  const int before = runtime::threads();
  for (const int threads : {1, 2, 3, 7}) {
    runtime::set_threads(threads);
    for (const Blocks& blocks : {Blocks{0, 0}, Blocks{0, 1}, Blocks{1, 0}, Blocks{128, 128}, Blocks{1, 4096}}) {
      ASSERT_NO_FATAL_FAILURE(expect_blocks(x, Format::kE4m3, blocks, kVariants[0])) << threads;
    }
    for (const Blocks& blocks : {Blocks{0, 1}, Blocks{0, 5}, Blocks{700, 32}}) {
      ASSERT_NO_FATAL_FAILURE(expect_blocks(tall, Format::kE4m3, blocks, kVariants[0])) << threads;
    }
  }
  runtime::set_threads(before);
}

}  // namespace
}  // namespace plimsoll::kernels::quantize_blocks_test
