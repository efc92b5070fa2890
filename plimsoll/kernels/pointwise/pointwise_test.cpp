#include "plimsoll/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Array;

double share_below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
double bell(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
// GELU by tanh: x times the logistic function of this.
double gelu_tanh_argument(double x) { return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

// The function, and the size of the terms that it is made of.
struct Exact {
  double value, terms;
};
Exact exact(Function function, double a, double b) {
  const auto alone = [](double value) { return Exact{value, std::fabs(value)}; };
  const auto sum = [](double x, double y) { return Exact{x + y, std::fabs(x) + std::fabs(y)}; };
  switch (function) {
    case Function::kSum:
      return sum(a, b);
    case Function::kProduct:
      return alone(a * b);
    case Function::kTanh:
      return alone(std::tanh(a));
    case Function::kSigmoid:
      return alone(logistic(a));
    case Function::kSilu:
      return alone(a * logistic(a));
    case Function::kGelu:
      return alone(a * share_below(a));
    case Function::kGeluTanh:
      return alone(a * logistic(gelu_tanh_argument(a)));
    case Function::kTanhGradient:
      return sum(a, -a * b * b);
    case Function::kSigmoidGradient:
      return sum(a * b, -a * b * b);
    case Function::kSiluGradient:
      return sum(a * logistic(b), a * b * logistic(b) * logistic(-b));
    case Function::kGeluGradient:
      return sum(a * share_below(b), a * b * bell(b));
    case Function::kGeluTanhGradient: {
      const double s = logistic(gelu_tanh_argument(b));
      const double slope = 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * b * b);
      return sum(a * s, a * b * s * logistic(-gelu_tanh_argument(b)) * slope);
    }
  }
  return {};
}

// Relative errors of the functions in FP32: exponentials of up to 80 with a rounded argument.
constexpr double kFp32Error = 100 * 0x1p-24;

// Additions of a square: 4,096 elements in 16 lanes, which are added up; then blocks in double, which counts for one more.
constexpr double kSumDepth = 4096 / 16 + 4 + 1;

struct Case {
  Function function;
  Format format;
  int64_t count;
  float a_factor, b_factor, y_factor;
  bool has_b;
};

PointwiseResult run(const Case& c, const Array& a, const Array& b, Array& y) {
  return pointwise({.function = c.function,
                    .format = c.format,
                    .a = a.data(),
                    .a_factor = c.a_factor,
                    .b = c.has_b ? b.data() : nullptr,
                    .b_factor = c.b_factor,
                    .y = y.data(),
                    .y_factor = c.y_factor,
                    .count = c.count});
}

void expect_function(const Case& c) {
  Array a(c.format, testing::sample(c.count, 1)), b(c.format, testing::sample(c.count, 2));
  Array y(c.format, c.count);
  const PointwiseResult result = run(c, a, b, y);
  ASSERT_TRUE(y.guards_intact());
  const double rounding = c.format == Format::kFp16 ? 0x1p-11 : 0x1p-8;
  const double smallest = c.format == Format::kFp16 ? 0x1p-24 : 0x1p-126;
  double amax = 0, amax_error = 0, squares = 0, slack = 0;
  for (int64_t i = 0; i < c.count; ++i) {
    const double second = (c.has_b ? static_cast<double>(b.at(i)) : 1) * static_cast<double>(c.b_factor);
    const Exact of = exact(c.function, static_cast<double>(a.at(i)) * static_cast<double>(c.a_factor), second);
    const double value = of.value * static_cast<double>(c.y_factor);
    const double error = kFp32Error * of.terms * static_cast<double>(c.y_factor);
    ASSERT_NEAR(static_cast<double>(y.at(i)), value, std::fabs(value) * rounding + error * (1 + rounding) + smallest)
        << i << " of " << c.count << ", function " << static_cast<int>(c.function);
    amax = std::max(amax, std::fabs(value));
    amax_error = std::max(amax_error, error);
    squares += value * value;
    slack += 2 * std::fabs(value) * error + error * error;
  }
  ASSERT_NEAR(static_cast<double>(result.amax), amax, amax_error + smallest);
  ASSERT_NEAR(result.sum_of_squares, squares, slack + testing::gamma(kSumDepth) * squares + 0x1p-126);
}

// All functions, with the operands that each has.
std::vector<Case> cases(Format format, int64_t count) {
  std::vector<Case> all;
  for (int i = 0; i < kFunctions; ++i) {
    const auto function = static_cast<Function>(i);
    const bool alone = function >= Function::kTanh && function <= Function::kGeluTanh;
    all.push_back({function, format, count, 1, 1, 1, !alone});
    all.push_back({function, format, count, 0.25f, 0.5f, 8, !alone});
    if (function <= Function::kProduct) all.push_back({function, format, count, 1, 0.7f, 2, false});
  }
  return all;
}

TEST(Pointwise, IsTheFunctionAndOneRounding) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const Format format : {Format::kFp16, Format::kBf16})
      for (const int64_t count : {0, 1, 15, 16, 17, 33, 4097})
        for (const Case& c : cases(format, count)) ASSERT_NO_FATAL_FAILURE(expect_function(c));
  }
}

TEST(Pointwise, BitsDependNeitherOnTheIsaNorOnThreads) {
  constexpr int64_t kCount = 70'003;
  for (const Format format : {Format::kFp16, Format::kBf16}) {
    const Array a(format, testing::sample(kCount, 3)), b(format, testing::sample(kCount, 4));
    for (const Case& c : cases(format, kCount)) {
      Array expected(format, kCount), y(format, kCount);
      PointwiseResult first;
      {
        const runtime::ScopedIsa scope(runtime::Isa::kPortable);
        const testing::ScopedThreads one(1);
        first = run(c, a, b, expected);
      }
      for (const runtime::Isa isa : testing::isas_present()) {
        const runtime::ScopedIsa scope(isa);
        const testing::ScopedThreads four(4);
        const PointwiseResult result = run(c, a, b, y);
        EXPECT_EQ(result.amax, first.amax);
        EXPECT_EQ(result.sum_of_squares, first.sum_of_squares);
        ASSERT_TRUE(testing::same(y, expected)) << static_cast<int>(c.function);
      }
    }
  }
}

TEST(Pointwise, WhatIsNotFiniteIsTheAmax) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Case& c : cases(Format::kFp16, 40)) {
      Array a(Format::kFp16, testing::sample(40, 5)), b(Format::kFp16, testing::sample(40, 6)), y(Format::kFp16, 40);
      a.set(33, std::nanf(""));
      EXPECT_TRUE(std::isnan(run(c, a, b, y).amax)) << static_cast<int>(c.function);
      EXPECT_TRUE(std::isnan(y.at(33)));
    }
    Array a(Format::kFp16, testing::sample(40, 5)), y(Format::kFp16, 40);
    a.set(0, -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isinf(run({Function::kSum, Format::kFp16, 40, 1, 1, 1, false}, a, a, y).amax));
  }
}

}  // namespace
}  // namespace plimsoll::kernels
