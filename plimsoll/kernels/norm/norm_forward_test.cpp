#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "plimsoll/kernels/norm/norm_oracle.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

struct Case {
  NormKind kind = NormKind::kLayerNorm;
  int64_t rows = 3, cols = 37;
  Format x_format = Format::kFp32, y_format = Format::kFp32;
  bool residual = false, bias = true, zero_centered = false;
  float scale = 1.0f, epsilon = 1e-5f;
};

std::string describe(const Case& c) {
  return std::string(c.kind == NormKind::kLayerNorm ? "LayerNorm " : "RMSNorm ") + std::to_string(c.rows) + " x " +
         std::to_string(c.cols) + " " + std::string(format::info(c.x_format).name) + " to " +
         std::string(format::info(c.y_format).name) + (c.residual ? " residual" : "") + (c.bias ? " bias" : "") +
         (c.zero_centered ? " zero-centered" : "");
}

struct Inputs {
  Array x, residual, weight, bias;
  explicit Inputs(const Case& c, float mean = 0.5f)
      : x(c.x_format, sample(c.rows * c.cols, 1, mean)),
        residual(c.x_format, sample(c.rows * c.cols, 2)),
        weight(Format::kFp32, sample(c.cols, 3, c.zero_centered ? 0.0f : 1.0f, 0.25f)),
        bias(Format::kFp32, sample(c.cols, 4, 0.0f, 0.5f)) {}
};

struct Outputs {
  Array y, sum, mean, rstd;
  float amax = 0;
  explicit Outputs(const Case& c)
      : y(c.y_format, c.rows * c.cols),
        sum(c.x_format, c.residual ? c.rows * c.cols : 0),
        mean(Format::kFp32, c.rows),
        rstd(Format::kFp32, c.rows) {}
};

Outputs run(const Case& c, Inputs& in) {
  Outputs out(c);
  const bool layer_norm = c.kind == NormKind::kLayerNorm;
  norm_forward({.kind = c.kind,
                .rows = c.rows,
                .cols = c.cols,
                .x = in.x.data(),
                .residual = c.residual ? in.residual.data() : nullptr,
                .sum = c.residual ? out.sum.data() : nullptr,
                .x_format = c.x_format,
                .weight = in.weight.floats(),
                .bias = c.bias ? in.bias.floats() : nullptr,
                .zero_centered = c.zero_centered,
                .epsilon = c.epsilon,
                .y = out.y.data(),
                .y_format = c.y_format,
                .scale = &c.scale,
                .amax = &out.amax,
                .mean = layer_norm ? out.mean.floats() : nullptr,
                .rstd = out.rstd.floats()});
  EXPECT_TRUE(out.y.guards_intact() && out.sum.guards_intact() && out.mean.guards_intact() && out.rstd.guards_intact());
  return out;
}

NormParameters parameters_of(const Case& c, const Inputs& in) {
  NormParameters parameters{c.kind, {}, {}, static_cast<double>(c.epsilon)};
  for (int64_t i = 0; i < c.cols; ++i) {
    parameters.gain.push_back(static_cast<double>(in.weight.at(i)) + (c.zero_centered ? 1 : 0));
    parameters.bias.push_back(c.bias ? static_cast<double>(in.bias.at(i)) : 0);
  }
  return parameters;
}

// FP32 output against double, every row and statistic within its bound. Returns the largest relative bound of rstd.
double expect_near_oracle(const Case& c, const Inputs& in, const Outputs& out) {
  double widest = 0;
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::vector<double> x = row_of(c.residual ? out.sum : in.x, row, c.cols);
    const NormParameters parameters = parameters_of(c, in);
    const NormRow exact = norm_oracle(parameters, x);
    const NormBound bound = norm_bound(parameters, x, exact);
    if (c.kind == NormKind::kLayerNorm) {
      EXPECT_NEAR(out.mean.at(row), exact.mean, bound.mean);
    }
    EXPECT_NEAR(out.rstd.at(row), exact.rstd, bound.rstd);
    widest = std::max(widest, bound.rstd / exact.rstd);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(out.y.at(row * c.cols + static_cast<int64_t>(i)), exact.y[i], bound.y[i]) << row << ", " << i;
    }
  }
  return widest;
}

float largest_magnitude(const Array& y) {
  float largest = 0;
  for (int64_t i = 0; i < y.count(); ++i) largest = std::max(largest, std::abs(y.at(i)));
  return largest;
}

template <class Check>
void for_cases(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      for (Format x_format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
        for (int64_t cols : {1, 2, 15, 16, 17, 63, 64, 65, 1023, 1025, 2049}) {
          for (int variant = 0; variant < 4; ++variant) {
            const Case c{.kind = kind,
                         .rows = cols < 100 ? 5 : 2,
                         .cols = cols,
                         .x_format = x_format,
                         .residual = variant % 2 == 1,
                         .bias = kind == NormKind::kLayerNorm && variant != 2,
                         .zero_centered = variant >= 2};
            SCOPED_TRACE(describe(c));
            check(c);
          }
        }
      }
    }
  }
}

TEST(NormForward, IsWithinTheBoundOfDouble) {
  for_cases([](const Case& c) {
    Inputs in(c);
    const Outputs out = run(c, in);
    EXPECT_LT(expect_near_oracle(c, in, out), 512 * 0x1p-24);  // one column of two is near the other
    EXPECT_EQ(out.amax, largest_magnitude(out.y));
  });
}

TEST(NormForward, AddsTheResidualInTheInputFormat) {
  for_cases([](const Case& c) {
    if (!c.residual) return;
    Inputs in(c);
    const Outputs out = run(c, in);
    for (int64_t i = 0; i < c.rows * c.cols; ++i) {
      ASSERT_EQ(out.sum.code(i), format::encode(c.x_format, in.x.at(i) + in.residual.at(i))) << i;
    }
  });
}

TEST(NormForward, NarrowOutputsAreTheFp32OutputEncoded) {
  for_cases([](Case c) {
    Inputs in(c);
    const Outputs wide = run(c, in);
    c.scale = 1 / 37.5f;
    for (Format y_format : {Format::kBf16, Format::kFp16, Format::kE4m3, Format::kE5m2}) {
      c.y_format = y_format;
      const Outputs narrow = run(c, in);
      const float factor = format::is_fp8(y_format) ? 1 / c.scale : 1.0f;
      for (int64_t i = 0; i < wide.y.count(); ++i) {
        ASSERT_EQ(narrow.y.code(i), format::encode(y_format, wide.y.at(i) * factor)) << describe(c) << " " << i;
      }
      ASSERT_EQ(narrow.amax, wide.amax);
    }
  });
}

TEST(NormForward, GivesTheSameBitsOnEveryIsaAndThreadCount) {
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 1}, {301, 77}, {33, 4099}}) {
      const Case c{.kind = kind,
                   .rows = rows,
                   .cols = cols,
                   .x_format = Format::kBf16,
                   .y_format = Format::kE4m3,
                   .residual = true,
                   .bias = kind == NormKind::kLayerNorm};
      Inputs in(c);
      std::optional<Outputs> first;
      for (runtime::Isa isa : isas_present()) {
        for (int threads : {1, 2, 3, 7}) {
          const runtime::ScopedIsa scope(isa);
          const ScopedThreads team(threads);
          const Outputs out = run(c, in);
          if (!first) first = out;
          EXPECT_TRUE(same(out.y, first->y) && same(out.sum, first->sum) && same(out.mean, first->mean) &&
                      same(out.rstd, first->rstd) && same(out.amax, first->amax))
              << describe(c) << " " << runtime::name(isa) << " " << threads;
        }
      }
    }
  }
}

TEST(NormForward, ALargeMeanCostsNoAccuracyOfTheVariance) {
  const Case c{.rows = 2, .cols = 1000};
  Inputs in(c, 1e4f);
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    EXPECT_LT(expect_near_oracle(c, in, run(c, in)), 0.05);  // mean(x^2) - mean^2 is wrong by a factor: ulp(1e8) is 8
  }
}

TEST(NormForward, ANonFiniteValuePoisonsItsRowAndNoOther) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      for (Format y_format : {Format::kFp32, Format::kE4m3, Format::kE5m2}) {
        // The last breaks down by overflow: its squares exceed FP32.
        for (float poison : {kInf, -kInf, kNan, 1e30f}) {
          for (int64_t place : {0, 36}) {
            const Case c{.kind = kind, .rows = 5, .y_format = y_format, .bias = kind == NormKind::kLayerNorm};
            Inputs in(c);
            const Outputs clean = run(c, in);
            in.x.set(2 * c.cols + place, poison);
            const Outputs out = run(c, in);
            for (int64_t i = 0; i < c.rows * c.cols; ++i) {
              if (i / c.cols == 2) {
                ASSERT_TRUE(std::isnan(out.y.at(i))) << describe(c) << " " << poison;
              } else {
                ASSERT_EQ(out.y.code(i), clean.y.code(i));
              }
            }
            EXPECT_TRUE(std::isnan(out.amax));
          }
        }
      }
    }
  }
}

TEST(NormForward, OneColumnIsTheBiasAndAZeroRowStaysZero) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case one{.rows = 4, .cols = 1};
    Inputs in(one);
    const Outputs out = run(one, in);
    for (int64_t row = 0; row < one.rows; ++row) EXPECT_EQ(out.y.at(row), in.bias.at(0));

    const Case zeros{.kind = NormKind::kRmsNorm, .rows = 2, .cols = 33, .bias = false};
    Inputs zero_in(zeros);
    for (int64_t i = 0; i < zero_in.x.count(); ++i) zero_in.x.set(i, 0.0f);
    const Outputs zero_out = run(zeros, zero_in);
    for (int64_t i = 0; i < zero_out.y.count(); ++i) EXPECT_EQ(zero_out.y.at(i), 0.0f);
    EXPECT_EQ(zero_out.amax, 0.0f);
    const double rstd = 1 / std::sqrt(static_cast<double>(zeros.epsilon));
    EXPECT_NEAR(zero_out.rstd.at(0), rstd, gamma(2) * rstd);  // a root and a quotient
  }
}

TEST(NormForward, EmptyMatricesAreLeftAlone) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
      const Case c{.rows = rows, .cols = cols};
      Inputs in(c);
      EXPECT_EQ(run(c, in).amax, 0.0f);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
