#include "plimsoll/kernels/log_softmax/log_softmax.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kChunk = 1024;
const double kTiny = std::exp(-87.0);  // smaller exponentials are 0

struct Case {
  int64_t rows = 5, cols = 37;
  Format format = Format::kFp32;

  int64_t count() const { return rows * cols; }
};

std::string describe(const Case& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.cols) + " " + std::string(format::info(c.format).name);
}

Array forward(const Case& c, const Array& x) {
  Array y(c.format, c.count());
  log_softmax_forward({.rows = c.rows, .cols = c.cols, .x = x.data(), .y = y.data(), .format = c.format});
  EXPECT_TRUE(y.guards_intact());
  return y;
}

Array backward(const Case& c, const Array& y, const Array& dy) {
  Array dx(c.format, c.count());
  log_softmax_backward(
      {.rows = c.rows, .cols = c.cols, .y = y.data(), .dy = dy.data(), .dx = dx.data(), .format = c.format});
  EXPECT_TRUE(dx.guards_intact());
  return dx;
}

struct Exact {
  std::vector<double> value, bound;  // before rounding to the format
};

// In double, with the bounds of docs/numerics.md.
Exact forward_oracle(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  const auto count = static_cast<double>(x.size()), chunks = std::ceil(count / kChunk);
  double sum = 0, sum_error = gamma(28 + 6 * chunks) + count * 0x1p-126;
  for (double value : x) sum += std::exp(value - top);
  for (double value : x) sum_error += std::exp(value - top) / sum * gamma(3 * std::min(top - value, 100.0) + 6);
  const double log_sum = std::log(sum);
  Exact exact;
  for (double value : x) {
    exact.value.push_back(value - top - log_sum);
    exact.bound.push_back((gamma(7) * (top - value + log_sum) + sum_error) * kSecondOrder);
  }
  return exact;
}

Exact backward_oracle(const std::vector<double>& y, const std::vector<double>& dy) {
  double sum = 0, magnitude = 0;
  for (double value : dy) {
    sum += value;
    magnitude += std::abs(value);
  }
  Exact exact;
  for (size_t i = 0; i < y.size(); ++i) {
    const double p = std::exp(y[i]);
    exact.value.push_back(dy[i] - p * sum);
    const double error = p * (gamma(3) * std::abs(sum) + gamma(sum_depth(static_cast<int64_t>(y.size()))) * magnitude) +
                         kTiny * magnitude;
    exact.bound.push_back((error + gamma(1) * std::abs(exact.value.back())) * kSecondOrder);
  }
  return exact;
}

void expect_near(const Case& c, const Array& result, int64_t row, const Exact& exact) {
  for (int64_t i = 0; i < c.cols; ++i) {
    const auto place = static_cast<size_t>(i);
    ASSERT_NEAR(result.at(row * c.cols + i), exact.value[place],
                narrow_bound(c.format, exact.value[place], exact.bound[place]))
        << describe(c) << " row " << row << ", " << i;
  }
}

void expect_forward(const Case& c, const Array& x) {
  const Array y = forward(c, x);
  for (int64_t row = 0; row < c.rows; ++row) expect_near(c, y, row, forward_oracle(row_of(x, row, c.cols)));
}

template <class Check>
void on_every_isa(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    check();
  }
}

template <class Check>
void for_cases(Check check) {
  on_every_isa([&] {
    for (int64_t cols : {1, 2, 15, 16, 17, 63, 64, 65, 127, 1023, 1024, 1025, 2077, 5003}) {
      for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) check(Case{.cols = cols, .format = format});
    }
  });
}

TEST(LogSoftmaxForward, IsWithinTheBoundOfDouble) {
  for_cases([](const Case& c) { expect_forward(c, Array(c.format, sample(c.count(), 1, 0.5f, 3.0f))); });
}

TEST(LogSoftmaxForward, IsWithinTheBoundForALargeVocabulary) {
  const Case c{.rows = 2, .cols = 50257};
  expect_forward(c, Array(c.format, sample(c.count(), 1, 0.0f, 2.0f)));
}

TEST(LogSoftmaxForward, FollowsAMaximumThatRisesOrFalls) {
  on_every_isa([] {
    for (float slope : {1e-6f, 0.01f, -0.01f, 0.2f}) {
      const Case c{.rows = 1, .cols = 4500};
      std::vector<float> x(static_cast<size_t>(c.count()));
      for (size_t i = 0; i < x.size(); ++i) x[i] = slope * static_cast<float>(i);
      expect_forward(c, Array(c.format, x));
    }
  });
}

TEST(LogSoftmaxForward, ALikelyLogitKeepsItsSmallLogarithm) {
  on_every_isa([] {
    const Case c{.rows = 1, .cols = 3000};
    std::vector<float> x(static_cast<size_t>(c.count()), -10.0f);
    x[2900] = 10.0f;
    const Array y = forward(c, Array(c.format, x));
    const double exact = -std::log1p(2999 * std::exp(-20.0));
    const Exact bound = forward_oracle(row_of(Array(c.format, x), 0, c.cols));
    EXPECT_LT(bound.bound[2900], 0.5 * gamma(256));
    EXPECT_NEAR(y.at(2900), exact, bound.bound[2900]);
  });
}

TEST(LogSoftmaxForward, LargeLogitsDoNotOverflowAndMinusInfinityStays) {
  on_every_isa([] {
    for (Format format : {Format::kFp32, Format::kBf16}) {
      const Case c{.rows = 1, .cols = 3, .format = format};
      const Array y = forward(c, Array(format, std::vector<float>{1e30f, -kInf, 1e30f}));
      const float half = format::decode(format, format::encode(format, -std::log(2.0f)));
      EXPECT_EQ(y.at(0), half);
      EXPECT_EQ(y.at(1), -kInf);
      EXPECT_EQ(y.at(2), half);
    }
    const Case c{.rows = 1, .cols = 3000};
    std::vector<float> x(3000, -kInf);  // the first chunk holds nothing else
    x[2900] = x[2999] = -200.0f;
    const Array y = forward(c, Array(c.format, x));
    for (int64_t i = 0; i < c.cols; ++i) ASSERT_EQ(y.at(i), i == 2900 || i == 2999 ? -std::log(2.0f) : -kInf) << i;
  });
}

TEST(LogSoftmaxForward, ANonFiniteLogitPoisonsItsRowAndNoOther) {
  on_every_isa([] {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (float poison : {kInf, kNan}) {
        for (int64_t place : {0, 1100, 2004}) {
          const Case c{.cols = 2005, .format = format};
          Array x(format, sample(c.count(), 1));
          const Array clean = forward(c, x);
          x.set(2 * c.cols + place, poison);
          const Array y = forward(c, x);
          for (int64_t i = 0; i < c.count(); ++i)
            ASSERT_TRUE(i / c.cols == 2 ? std::isnan(y.at(i)) : same(y, clean, i)) << i;
        }
      }
      const Case c{.rows = 1, .format = format};
      const Array nothing = forward(c, Array(format, std::vector<float>(37, -kInf)));
      for (int64_t i = 0; i < c.count(); ++i) ASSERT_TRUE(std::isnan(nothing.at(i)));
    }
  });
}

TEST(LogSoftmaxBackward, OracleAgreesWithDifferences) {
  const std::vector<double> x = {0.3, -1.2, 2.0, 0.1}, dy = {1.0, -0.5, 0.25, 2.0};
  constexpr double kStep = 0x1p-17;
  const auto weighted = [&](const std::vector<double>& logits) {
    const Exact y = forward_oracle(logits);
    double total = 0;
    for (size_t i = 0; i < dy.size(); ++i) total += dy[i] * y.value[i];
    return total;
  };
  const Exact exact = backward_oracle(forward_oracle(x).value, dy);
  // Third derivative: that of the logarithm of a sum of exponentials, at most 1 / 8, times |sum(dy)| = 2.75. Roundings of
  // numbers of at most 4 * 2: the moved logit, four exponentials and their sum, 3 of what follows, a product and four additions.
  const double error = difference_error(kStep, 2.75 / 8, 17, 8);
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> up = x, down = x;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR(exact.value[i], (weighted(up) - weighted(down)) / (2 * kStep), error) << i;
  }
}

TEST(LogSoftmaxBackward, IsWithinTheBoundOfDouble) {
  for_cases([](const Case& c) {
    const Array y = forward(c, Array(c.format, sample(c.count(), 1, 0.0f, 2.0f)));
    const Array dy(c.format, sample(c.count(), 2)), dx = backward(c, y, dy);
    for (int64_t row = 0; row < c.rows; ++row)
      expect_near(c, dx, row, backward_oracle(row_of(y, row, c.cols), row_of(dy, row, c.cols)));
  });
}

TEST(LogSoftmaxBackward, TheGradientOfOneTargetIsTheProbabilitiesLessOne) {
  on_every_isa([] {
    const Case c{.rows = 3, .cols = 2077};
    const Array y = forward(c, Array(c.format, sample(c.count(), 1)));
    std::vector<float> one(static_cast<size_t>(c.count()), 0.0f);
    one[5] = one[static_cast<size_t>(c.cols) + 2000] = -1.0f;  // the last row has no target: ignored
    const Array dx = backward(c, y, Array(c.format, one));
    for (int64_t i = 0; i < c.count(); ++i) {
      const bool is_target = one[static_cast<size_t>(i)] != 0.0f;
      const double p = std::exp(static_cast<double>(y.at(i)));
      if (i / c.cols == 2)
        ASSERT_EQ(dx.at(i), 0.0f);
      else
        ASSERT_NEAR(dx.at(i), p - is_target, gamma(3) * p + gamma(1) * std::abs(p - is_target) + kTiny) << i;
    }
  });
}

TEST(LogSoftmaxBackward, ANonFiniteGradientPoisonsItsRowAndNoOther) {
  on_every_isa([] {
    for (float poison : {kInf, kNan}) {
      const Case c{.rows = 3};
      const Array y = forward(c, Array(c.format, sample(c.count(), 1)));
      Array dy(c.format, sample(c.count(), 2));
      const Array clean = backward(c, y, dy);
      dy.set(37 + 36, poison);
      const Array dx = backward(c, y, dy);
      for (int64_t i = 0; i < c.count(); ++i)
        ASSERT_TRUE(i / 37 == 1 ? !std::isfinite(dx.at(i)) : dx.code(i) == clean.code(i)) << i;
    }
  });
}

TEST(LogSoftmax, BoundsAreTightEnoughToFail) {
  const Case c{.rows = 1, .cols = 5003};
  const Array x(c.format, sample(c.count(), 1)), dy(c.format, sample(c.count(), 2));
  const Exact y = forward_oracle(row_of(x, 0, c.cols));
  const Exact dx = backward_oracle(y.value, row_of(dy, 0, c.cols));
  for (size_t i = 0; i < y.value.size(); ++i) {
    ASSERT_GT(1e-4 * std::abs(y.value[i]) + 1e-4, y.bound[i]);
    ASSERT_GT(1e-4 * std::abs(dx.value[i]) + 1e-5, dx.bound[i]);
  }
}

TEST(LogSoftmax, GivesTheSameBitsOnEveryIsaThreadCountAndInPlace) {
  for (const int64_t cols : {1, 77, 4099}) {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      const Case c{.rows = 23, .cols = cols, .format = format};
      const Array x(format, sample(c.count(), 1, 0.0f, 5.0f)), dy(format, sample(c.count(), 2));
      std::optional<Array> first, first_back;
      for (runtime::Isa isa : isas_present()) {
        for (int threads : {1, 2, 3, 7}) {
          const runtime::ScopedIsa scope(isa);
          const ScopedThreads team(threads);
          const Array y = forward(c, x), dx = backward(c, y, dy);
          if (!first) first = y;
          if (!first_back) first_back = dx;
          EXPECT_TRUE(same(y, *first) && same(dx, *first_back))
              << describe(c) << " " << runtime::name(isa) << " " << threads;
        }
      }
      Array y = x, dx = dy;
      log_softmax_forward({.rows = c.rows, .cols = cols, .x = y.data(), .y = y.data(), .format = format});
      log_softmax_backward(
          {.rows = c.rows, .cols = cols, .y = y.data(), .dy = dx.data(), .dx = dx.data(), .format = format});
      EXPECT_TRUE(same(y, *first) && same(dx, *first_back)) << describe(c) << " in place";
    }
  }
}

TEST(LogSoftmax, WorksOnNothing) {
  on_every_isa([] {
    for (const Case& c : {Case{.rows = 0, .cols = 3}, Case{.rows = 3, .cols = 0}}) {
      const Array x(c.format, 0);
      backward(c, forward(c, x), x);
    }
  });
}

}  // namespace
}  // namespace plimsoll::kernels
