#include "plimsoll/kernels/quantize/quantize_dgelu.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Content;
using testing::TestMatrix;

// Derivative of x / 2 (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), in double.
double gelu_gradient_in_double(double x) {
  const double k = std::sqrt(2.0 / 3.14159265358979323846), cubic = 0.044715;
  const double t = std::tanh(k * (x + cubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * cubic * x * x);
}

struct Result {
  std::vector<uint8_t> codes, transposed;
  std::vector<float> column_sum;
  float amax;
};

Result run(const TestMatrix& grad, const TestMatrix& pre, Format format) {
  const size_t size = static_cast<size_t>(grad.rows * grad.cols);
  Result result = {std::vector<uint8_t>(size), std::vector<uint8_t>(size),
                   std::vector<float>(static_cast<size_t>(grad.cols)), 0};
  result.amax = quantize_dgelu({.grad = grad.data(),
                                .pre_activation = pre.data(),
                                .x_format = grad.format,
                                .rows = grad.rows,
                                .cols = grad.cols,
                                .grad_stride = grad.stride,
                                .pre_activation_stride = pre.stride,
                                .codes = result.codes.data(),
                                .format = format,
                                .codes_stride = grad.cols,
                                .transposed = result.transposed.data(),
                                .transposed_stride = grad.rows,
                                .column_sum = result.column_sum.data()});
  return result;
}

// gelu' is a sum of terms below 1.2 in magnitude, computed in about 20 FP32 roundings and an exp of 2 ulp.
constexpr double kGradientError = 32 * 0x1p-24 * 1.2;

TEST(QuantizeDgelu, CodesAreWithinOneStepOfTheExactProductRounded) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format x_format : testing::kInputFormats) {
      for (const auto& [rows, cols] : testing::kShapes) {
        SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::to_string(rows) + " x " + std::to_string(cols));
        const TestMatrix grad(x_format, rows, cols, 1, Content::kFinite);
        TestMatrix pre(x_format, rows, cols, 4, Content::kFinite);
        for (int64_t i = 0; i < rows * cols; ++i) pre.set(i / cols, i % cols, static_cast<float>(i % 97 - 48) / 9.0f);
        const Result result = run(grad, pre, Format::kE5m2);
        double amax = 0, amax_error = 0;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t col = 0; col < cols; ++col) {
            const double g = double{grad.at(row, col)};
            const double exact = g * gelu_gradient_in_double(double{pre.at(row, col)});
            const double error = std::fabs(g) * kGradientError + 0x1p-148;
            // Rounding is monotonic: the code lies between those of the two ends of the error interval.
            const float low = format::E5m2::decode(format::E5m2::encode(static_cast<float>(exact - error)));
            const float high = format::E5m2::decode(format::E5m2::encode(static_cast<float>(exact + error)));
            const float value = format::E5m2::decode(result.codes[static_cast<size_t>(row * cols + col)]);
            ASSERT_GE(value, low) << exact;
            ASSERT_LE(value, high) << exact;
            ASSERT_EQ(result.transposed[static_cast<size_t>(col * rows + row)],
                      result.codes[static_cast<size_t>(row * cols + col)]);
            amax = std::max(amax, std::fabs(exact));
            amax_error = std::max(amax_error, error);
          }
        }
        ASSERT_NEAR(result.amax, amax, amax_error);
      }
    }
  }
}

TEST(QuantizeDgelu, IsTheSameOnEveryIsaAndForAnyThreadCount) {
  const TestMatrix grad(Format::kBf16, 517, 1031, 1, Content::kAll), pre(Format::kBf16, 517, 1031, 0, Content::kAll);
  const int before = runtime::threads();
  const Result expected = run(grad, pre, Format::kE4m3);
  EXPECT_TRUE(std::isnan(expected.amax));
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const int threads : {1, 2, 3, 7}) {
      runtime::set_threads(threads);
      const Result result = run(grad, pre, Format::kE4m3);
      ASSERT_EQ(result.codes, expected.codes);
      ASSERT_EQ(result.transposed, expected.transposed);
      for (size_t col = 0; col < result.column_sum.size(); ++col) {
        const float sum = result.column_sum[col], wanted = expected.column_sum[col];
        ASSERT_TRUE(sum == wanted || (std::isnan(sum) && std::isnan(wanted))) << col;
      }
    }
  }
  runtime::set_threads(before);
}

TEST(QuantizeDgelu, ColumnSumsAreThoseOfTheProducts) {
  const int64_t rows = 300, cols = 70;
  TestMatrix grad(Format::kFp32, rows, cols, 1, Content::kFinite), pre(Format::kFp32, rows, cols, 0, Content::kFinite);
  for (int64_t i = 0; i < rows * cols; ++i) {
    grad.set(i / cols, i % cols, static_cast<float>(i % 101 - 49) / 3.0f);
    pre.set(i / cols, i % cols, static_cast<float>(i % 41 - 20) / 7.0f);
  }
  const Result result = run(grad, pre, Format::kE5m2);
  for (int64_t col = 0; col < cols; ++col) {
    double sum = 0, magnitudes = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const double g = double{grad.at(row, col)};
      sum += g * gelu_gradient_in_double(double{pre.at(row, col)});
      magnitudes += std::fabs(g) * 1.2;
    }
    // Each product within kGradientError, each addition within half an ulp of what has been added up so far.
    const double bound = magnitudes * (kGradientError + static_cast<double>(rows) * 0x1p-24);
    const double got = double{result.column_sum[static_cast<size_t>(col)]};
    ASSERT_NEAR(got, sum, bound);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
