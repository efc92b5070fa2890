#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Content;
using testing::TestMatrix;

struct Result {
  explicit Result(const TestMatrix& x, int64_t padding)
      : codes_stride(x.cols + padding),
        codes(static_cast<size_t>(x.rows * codes_stride + 1), 0xee),
        column_sum(static_cast<size_t>(x.cols), -1.0f) {}
  int64_t codes_stride;
  std::vector<uint8_t> codes;
  std::vector<float> column_sum;
  float amax = -1;
};

QuantizeTensor arguments(const TestMatrix& x, Format format, const float& scale, float& amax) {
  return {.x = x.data(),
          .x_format = x.format,
          .rows = x.rows,
          .cols = x.cols,
          .x_stride = x.stride,
          .format = format,
          .scale = &scale,
          .amax = &amax};
}

void expect_codes(const TestMatrix& x, const QuantizeTensor& args) {
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) {
      const uint32_t code = format::encode(args.format, x.at(row, col) * (1 / *args.scale));
      ASSERT_EQ(args.codes[row * args.codes_stride + col], code) << x.at(row, col);
    }
  }
}

// Sums of 64 rows each, then the sum of those: the documented order.
std::vector<float> expected_column_sums(const TestMatrix& x) {
  std::vector<float> sums;
  for (int64_t col = 0; col < x.cols; ++col) {
    float sum = 0;
    for (int64_t begin = 0; begin < x.rows; begin += 64) {
      float partial = 0;
      for (int64_t row = begin; row < std::min(begin + 64, x.rows); ++row) partial += x.at(row, col);
      sum += partial;
    }
    sums.push_back(sum);
  }
  return sums;
}

void expect_same_floats(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

template <class Check>
void over_inputs(Check check) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format x_format : testing::kInputFormats) {
      for (const Format format : testing::kCodeFormats) {
        for (const auto& [rows, cols] : testing::kShapes) {
          for (const int64_t padding : {0, 3}) {
            SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::string(format::info(x_format).name) + " " +
                         std::string(format::info(format).name) + " " + std::to_string(rows) + " x " +
                         std::to_string(cols) + " + " + std::to_string(padding));
            const TestMatrix x(x_format, rows, cols, padding, Content::kAll);
            ASSERT_NO_FATAL_FAILURE(check(x, format, padding));
          }
        }
      }
    }
  }
}

TEST(QuantizeTensor, CodesAreTheEncodedProductsAndAmaxHidesNothing) {
  over_inputs([](const TestMatrix& x, Format format, int64_t padding) {
    Result result(x, padding);
    const float scale = 2.7f;
    QuantizeTensor args = arguments(x, format, scale, result.amax);
    args.codes = result.codes.data() + 1;
    args.codes_stride = result.codes_stride;
    quantize_tensor(args);
    ASSERT_EQ(std::bit_cast<uint32_t>(result.amax), std::bit_cast<uint32_t>(testing::expected_amax(x)));
    ASSERT_NO_FATAL_FAILURE(expect_codes(x, args));
    ASSERT_EQ(result.codes[0], 0xee);
    if (padding > 0 && x.rows > 0) {
      ASSERT_EQ(result.codes.back(), 0xee);
    }
  });
}

TEST(QuantizeTensor, ColumnSumsComeWithTheCodesOrAlone) {
  over_inputs([](const TestMatrix& x, Format format, int64_t padding) {
    for (const bool with_codes : {true, false}) {
      Result result(x, padding);
      const float scale = 0.5f;
      QuantizeTensor args = arguments(x, format, scale, result.amax);
      if (with_codes) args.codes = result.codes.data() + 1;
      args.codes_stride = result.codes_stride;
      args.column_sum = result.column_sum.data();
      quantize_tensor(args);
      ASSERT_EQ(std::bit_cast<uint32_t>(result.amax), std::bit_cast<uint32_t>(testing::expected_amax(x)));
      if (with_codes) {
        ASSERT_NO_FATAL_FAILURE(expect_codes(x, args));
      }
      ASSERT_NO_FATAL_FAILURE(expect_same_floats(result.column_sum, expected_column_sums(x)));
    }
  });
}

// As in the state of delayed scaling before its first amax.
TEST(QuantizeTensor, TakesNoScaleAndAScaleOfZeroAsOne) {
  const TestMatrix x(Format::kFp32, 3, 47, 0, Content::kFinite);
  const float one = 1, none = 0;
  const auto codes_at = [&](const float* scale) {
    Result result(x, 0);
    QuantizeTensor args = arguments(x, Format::kE4m3, one, result.amax);
    args.scale = scale;
    args.codes = result.codes.data();
    args.codes_stride = result.codes_stride;
    quantize_tensor(args);
    return result.codes;
  };
  EXPECT_EQ(codes_at(nullptr), codes_at(&one));
  EXPECT_EQ(codes_at(&none), codes_at(&one));
}

TEST(QuantizeTensor, IsTheSameForAnyThreadCount) {
  const TestMatrix x(Format::kFp32, 517, 1543, 2, Content::kFinite);
  const int before = runtime::threads();
  for (const int threads : {1, 2, 3, 7}) {
    runtime::set_threads(threads);
    Result result(x, 0);
    const float scale = 1.0f;
    QuantizeTensor args = arguments(x, Format::kE4m3, scale, result.amax);
    args.codes = result.codes.data();
    args.codes_stride = result.codes_stride;
    args.column_sum = result.column_sum.data();
    quantize_tensor(args);
    EXPECT_EQ(result.amax, testing::expected_amax(x));
    expect_codes(x, args);
    expect_same_floats(result.column_sum, expected_column_sums(x));
  }
  runtime::set_threads(before);
}

}  // namespace
}  // namespace plimsoll::kernels
