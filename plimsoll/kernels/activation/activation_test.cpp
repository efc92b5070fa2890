#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/kernels/activation/activation_oracle.h"
#include "plimsoll/kernels/activation/activation_testing.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

double at(const Array& array, int64_t i) { return static_cast<double>(array.at(i)); }

float largest_magnitude(const Array& array) {
  float largest = 0;
  for (int64_t i = 0; i < array.count(); ++i) largest = std::max(largest, std::abs(array.at(i)));
  return largest;
}

template <class Check>
void for_cases(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
      for (Format x_format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
        for (const auto& [rows, cols] :
             {std::pair<int64_t, int64_t>{67, 1}, {3, 15}, {3, 16}, {65, 17}, {2, 1023}, {2, 1025}, {3, 2065}}) {
          const Case c{.kind = kind, .rows = rows, .cols = cols, .x_format = x_format};
          SCOPED_TRACE(describe(c));
          check(c);
        }
      }
    }
    // Both sides of each limit, and each parameter away from its default.
    for (const ActivationParameters& parameters : {ActivationParameters{0.75f, 1.0f, 0.0f}, {2.5f, -0.5f, -3.0f}}) {
      check({.kind = Activation::kClampedSwiglu, .rows = 5, .cols = 83, .parameters = parameters});
    }
  }
}

TEST(ActivationOracle, DerivativesAgreeWithDifferences) {
  constexpr double kStep = 0x1p-17;
  // Third derivatives are those of smooth steps: below 1 for GELU and SiLU, times 1.702^2 < 3 for quick GELU.
  constexpr double kThird = 3;
  // Roundings: of the moved x, whose slope is at most 2 y / x; of z, by |z| s (1 - s) < 1 / 4 of each of six; of e^-z, a
  // sum, a quotient and the product with x.
  constexpr double kRoundings = 8;
  for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
    for (double x = -8.013; x < 8; x += 0.1) {
      const double slope =
          (activation_oracle(curve, x + kStep).exact - activation_oracle(curve, x - kStep).exact) / (2 * kStep);
      const double magnitude = std::max({1.0, std::abs(x), activation_oracle(curve, x).exact});
      EXPECT_NEAR(derivative_oracle(curve, x).exact, slope, difference_error(kStep, kThird, kRoundings, magnitude))
          << x;
    }
  }
}

TEST(ActivationOracle, BoundsAreNarrow) {
  for (Curve curve :
       {Curve::kGelu, Curve::kSilu, Curve::kQuickGelu, Curve::kSigmoid, Curve::kGeluErf, Curve::kClampedSilu}) {
    for (double x = -3; x < 6; x += 0.1) {
      const Value y = activation_oracle(curve, x);
      EXPECT_LE(y.bound, 128 * kUnit * std::abs(y.exact) + 1e-30) << x;
      EXPECT_LE(derivative_oracle(curve, x).bound, 128 * kUnit) << x;
    }
  }
}

TEST(ActivationForward, IsWithinTheBoundOfDouble) {
  for_cases([](const Case& c) {
    Inputs in(c);
    const Forward out = forward(c, in);
    for (int64_t i = 0; i < c.rows * c.cols; ++i) {
      const int64_t row = i / c.cols, col = i % c.cols;
      const Curve curve = info(c.kind).curve;
      const ActivationParameters parameters = c.spec().parameters;
      Value y = activation_oracle(curve, at(in.x, c.gate(row, col)), parameters);
      if (is_gated(c.kind)) {
        const Value value = gated_oracle(curve, at(in.x, c.value(row, col)), parameters).value;
        const double exact = y.exact * value.exact;
        y = {exact, y.bound * std::abs(value.exact) +
                        kSecondOrder * (std::abs(y.exact) * value.bound + kUnit * std::abs(exact)) + kTiny};
      }
      ASSERT_NEAR(out.y.at(i), y.exact, y.bound) << i;
    }
    ASSERT_EQ(out.amax, largest_magnitude(out.y));
  });
}

TEST(ActivationForward, NarrowOutputsAreTheFp32OutputEncoded) {
  for_cases([](Case c) {
    Inputs in(c);
    const Forward wide = forward(c, in);
    c.scale = 1 / 21.7f;
    for (Format format : {Format::kBf16, Format::kFp16, Format::kE4m3, Format::kE5m2}) {
      c.out_format = format;
      const Forward narrow = forward(c, in);
      const float factor = format::is_fp8(format) ? 1 / c.scale : 1.0f;
      for (int64_t i = 0; i < wide.y.count(); ++i) {
        ASSERT_EQ(narrow.y.code(i), format::encode(format, wide.y.at(i) * factor)) << describe(c) << " " << i;
      }
      ASSERT_EQ(narrow.amax, wide.amax);
    }
  });
}

TEST(ActivationForward, GatesWithTheFirstHalf) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case c{.kind = Activation::kReglu, .rows = 2, .cols = 2};
    Inputs in(c);
    in.x = Array(Format::kFp32, std::vector<float>{2, -3, -5, 7, 11, 13, -17, 19});
    const Forward out = forward(c, in);
    EXPECT_EQ(out.y.at(0), 2 * -5.0f);
    EXPECT_EQ(out.y.at(1), 0.0f);
    EXPECT_EQ(out.y.at(2), 11 * -17.0f);
    EXPECT_EQ(out.y.at(3), 13 * 19.0f);
    EXPECT_EQ(out.amax, 13 * 19.0f);
  }
}

TEST(ActivationBackward, IsWithinTheBoundOfDouble) {
  for_cases([](Case c) {
    c.dy_format = c.x_format == Format::kFp16 ? Format::kBf16 : c.x_format;
    Inputs in(c);
    const Backward out = backward(c, in);
    const size_t width = static_cast<size_t>(c.x_cols());
    std::vector<double> sum(width), magnitude(width), error(width);
    auto check = [&](int64_t place, double exact, double bound) {
      const size_t column = static_cast<size_t>(place % c.x_cols());
      ASSERT_NEAR(out.dx.at(place), exact, bound) << place;
      sum[column] += exact;
      magnitude[column] += std::abs(exact) + bound;
      error[column] += bound;
    };
    for (int64_t i = 0; i < c.rows * c.cols; ++i) {
      const int64_t row = i / c.cols, col = i % c.cols;
      const double gate = at(in.x, c.gate(row, col)), dy = at(in.dy, i);
      const Curve curve = info(c.kind).curve;
      const ActivationParameters parameters = c.spec().parameters;
      const Gated gated =
          is_gated(c.kind) ? gated_oracle(curve, at(in.x, c.value(row, col)), parameters) : Gated{{1, 0}, 1};
      const double value = gated.value.exact;
      const Value slope = derivative_oracle(curve, gate, parameters), y = activation_oracle(curve, gate, parameters);
      const double dx = dy * value * slope.exact, dvalue = dy * y.exact * gated.slope;
      check(c.gate(row, col), dx,
            std::abs(dy * value) * (1 + gamma(2)) * slope.bound + gamma(2) * std::abs(dx) +
                kSecondOrder * std::abs(dy * slope.exact) * gated.value.bound + kTiny);
      if (is_gated(c.kind)) {
        check(c.value(row, col), dvalue,
              std::abs(dy) * (1 + kUnit) * y.bound + kSecondOrder * kUnit * std::abs(dvalue) + kTiny);
      }
    }
    const double depth = column_sum_depth(c.rows);
    for (size_t i = 0; i < width; ++i) {
      ASSERT_NEAR(out.column_sum.at(static_cast<int64_t>(i)), sum[i], error[i] + gamma(depth) * magnitude[i]) << i;
    }
    ASSERT_EQ(out.amax, largest_magnitude(out.dx));
  });
}

TEST(ActivationBackward, NarrowGradientsAreTheFp32GradientEncodedAndTheSumsAreNot) {
  for_cases([](Case c) {
    Inputs in(c);
    const Backward wide = backward(c, in);
    c.scale = 1 / 500.0f;
    for (Format format : {Format::kBf16, Format::kFp16, Format::kE4m3, Format::kE5m2}) {
      c.out_format = format;
      const Backward narrow = backward(c, in);
      const float factor = format::is_fp8(format) ? 1 / c.scale : 1.0f;
      for (int64_t i = 0; i < wide.dx.count(); ++i) {
        ASSERT_EQ(narrow.dx.code(i), format::encode(format, wide.dx.at(i) * factor)) << describe(c) << " " << i;
      }
      ASSERT_TRUE(same(narrow.column_sum, wide.column_sum));
      ASSERT_EQ(narrow.amax, wide.amax);
    }
  });
}

TEST(Activation, GivesTheSameBitsOnEveryIsaAndThreadCount) {
  for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 1}, {301, 77}, {70, 1027}}) {
      for (bool column_sum : {true, false}) {
        const Case c{.kind = kind,
                     .rows = rows,
                     .cols = cols,
                     .x_format = Format::kBf16,
                     .out_format = Format::kE5m2,
                     .column_sum = column_sum};
        Inputs in(c);
        std::optional<Forward> first;
        std::optional<Backward> first_back;
        for (runtime::Isa isa : isas_present()) {
          for (int threads : {1, 2, 3, 7}) {
            const runtime::ScopedIsa scope(isa);
            const ScopedThreads team(threads);
            const Forward out = forward(c, in);
            const Backward back = backward(c, in);
            if (!first) first = out;
            if (!first_back) first_back = back;
            EXPECT_TRUE(same(out.y, first->y) && same(out.amax, first->amax) && same(back.dx, first_back->dx) &&
                        same(back.amax, first_back->amax) && same(back.column_sum, first_back->column_sum))
                << describe(c) << " " << runtime::name(isa) << " " << threads;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
