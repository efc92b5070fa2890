#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/format/fp8.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using format::Overflow;
using testing::Content;
using testing::TestMatrix;

uint32_t expected_code(Format format, float x, uint32_t word, Overflow overflow) {
  return format == Format::kE4m3 ? format::E4m3::encode_stochastic(x, word, overflow)
                                 : format::E5m2::encode_stochastic(x, word, overflow);
}

void expect_draws(const TestMatrix& x, Format format, Overflow overflow, bool transposed) {
  const runtime::Philox random = {.seed = 0x123456789abcdef0u, .step = 77};
  std::vector<uint8_t> codes(static_cast<size_t>(x.rows * x.cols)), codes_t(codes.size());
  const float inv_scale = 0.173f;
  const float amax = quantize_tensor({.x = x.data(),
                                      .x_format = x.format,
                                      .rows = x.rows,
                                      .cols = x.cols,
                                      .x_stride = x.stride,
                                      .codes = codes.data(),
                                      .format = format,
                                      .codes_stride = x.cols,
                                      .inv_scale = inv_scale,
                                      .transposed = transposed ? codes_t.data() : nullptr,
                                      .transposed_stride = x.rows,
                                      .overflow = overflow,
                                      .random = &random});
  ASSERT_EQ(std::bit_cast<uint32_t>(amax), std::bit_cast<uint32_t>(testing::expected_amax(x)));
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) {
      const uint32_t word = random.word(static_cast<uint64_t>(row * x.cols + col));
      const uint32_t expected = expected_code(format, x.at(row, col) * inv_scale, word, overflow);
      ASSERT_EQ(codes[static_cast<size_t>(row * x.cols + col)], expected)
          << x.at(row, col) << " at " << row << ", " << col;
      if (transposed) {
        ASSERT_EQ(codes_t[static_cast<size_t>(col * x.rows + row)], expected);
      }
    }
  }
}

TEST(QuantizeStochastic, EachElementDrawsItsOwnWordOnEveryIsa) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const auto& [rows, cols] : testing::kShapes) {
      for (const int64_t padding : {0, 1}) {
        const TestMatrix x(Format::kFp32, rows, cols, padding, Content::kAll);
        for (const Format format : testing::kCodeFormats) {
          ASSERT_NO_FATAL_FAILURE(expect_draws(x, format, Overflow::kSaturate, padding == 1));
          ASSERT_NO_FATAL_FAILURE(expect_draws(x, format, Overflow::kNonFinite, false));
        }
      }
    }
  }
}

TEST(QuantizeStochastic, DrawsDoNotDependOnTheThreadCount) {
  const TestMatrix x(Format::kBf16, 517, 1031, 2, Content::kAll);
  const int before = runtime::threads();
  for (const int threads : {1, 2, 3, 7}) {
    runtime::set_threads(threads);
    ASSERT_NO_FATAL_FAILURE(expect_draws(x, Format::kE5m2, Overflow::kSaturate, true));
  }
  runtime::set_threads(before);
}

TEST(QuantizeStochastic, TheMeanOfManyDrawsIsTheValue) {
  const int64_t draws = 1 << 20;
  for (const float value : {1.03f, -300.7f, 0x1.3p-8f}) {
    const std::vector<float> x(static_cast<size_t>(draws), value);
    std::vector<uint8_t> codes(x.size());
    const runtime::Philox random = {.seed = 5, .step = 1};
    quantize_tensor({.x = x.data(),
                     .rows = 1,
                     .cols = draws,
                     .x_stride = draws,
                     .codes = codes.data(),
                     .codes_stride = draws,
                     .random = &random});
    double sum = 0, lowest = 1e9, highest = -1e9;
    for (const uint8_t code : codes) {
      const double decoded = double{format::E4m3::decode(code)};
      sum += decoded;
      lowest = std::min(lowest, decoded);
      highest = std::max(highest, decoded);
    }
    ASSERT_LT(lowest, double{value});
    ASSERT_GT(highest, double{value});
    const double p = (double{value} - lowest) / (highest - lowest);
    const double sigma = (highest - lowest) * std::sqrt(p * (1 - p) / static_cast<double>(draws));
    EXPECT_NEAR(sum / static_cast<double>(draws), double{value}, 5 * sigma);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
