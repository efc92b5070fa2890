#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "plimsoll/kernels/norm/norm_oracle.h"

namespace plimsoll::kernels::norm_backward_test {
namespace {

using namespace testing;

struct Case {
  NormKind kind = NormKind::kLayerNorm;
  int64_t rows = 3, cols = 37;
  Format dy_format = Format::kFp32, x_format = Format::kFp32, dx_format = Format::kFp32;
  bool zero_centered = false, dresidual = false;
};

std::string describe(const Case& c) {
  return std::string(c.kind == NormKind::kLayerNorm ? "LayerNorm " : "RMSNorm ") + std::to_string(c.rows) + " x " +
         std::to_string(c.cols) + " " + std::string(format::info(c.dy_format).name) + " " +
         std::string(format::info(c.x_format).name) + (c.zero_centered ? " zero-centered" : "") +
         (c.dresidual ? " dresidual" : "");
}

struct Inputs {
  Array x, dy, dresidual, weight, mean, rstd;
  explicit Inputs(const Case& c)
      : x(c.x_format, sample(c.rows * c.cols, 1, 0.5f)),
        dy(c.dy_format, sample(c.rows * c.cols, 2)),
        dresidual(c.dx_format, sample(c.rows * c.cols, 3)),
        weight(Format::kFp32, sample(c.cols, 4, c.zero_centered ? 0.0f : 1.0f, 0.25f)),
        mean(Format::kFp32, c.rows),
        rstd(Format::kFp32, c.rows) {
    Array y(Format::kFp32, c.rows * c.cols);
    norm_forward({.kind = c.kind,
                  .rows = c.rows,
                  .cols = c.cols,
                  .x = x.data(),
                  .x_format = c.x_format,
                  .weight = weight.floats(),
                  .zero_centered = c.zero_centered,
                  .y = y.data(),
                  .mean = c.kind == NormKind::kLayerNorm ? mean.floats() : nullptr,
                  .rstd = rstd.floats()});
  }
};

struct Outputs {
  Array dx, dweight, dbias;
  explicit Outputs(const Case& c)
      : dx(c.dx_format, c.rows * c.cols), dweight(Format::kFp32, c.cols), dbias(Format::kFp32, c.cols) {}
};

enum Wanted { kBoth, kWeight, kBias, kNeither };

Outputs run(const Case& c, Inputs& in, Wanted wanted = kBoth) {
  Outputs out(c);
  norm_backward({.kind = c.kind,
                 .rows = c.rows,
                 .cols = c.cols,
                 .dy = in.dy.data(),
                 .dy_format = c.dy_format,
                 .x = in.x.data(),
                 .x_format = c.x_format,
                 .weight = in.weight.floats(),
                 .zero_centered = c.zero_centered,
                 .mean = c.kind == NormKind::kLayerNorm ? in.mean.floats() : nullptr,
                 .rstd = in.rstd.floats(),
                 .dresidual = c.dresidual ? in.dresidual.data() : nullptr,
                 .dx = out.dx.data(),
                 .dx_format = c.dx_format,
                 .dweight = wanted == kBoth || wanted == kWeight ? out.dweight.floats() : nullptr,
                 .dbias = wanted == kBoth || wanted == kBias ? out.dbias.floats() : nullptr});
  EXPECT_TRUE(out.dx.guards_intact() && out.dweight.guards_intact() && out.dbias.guards_intact());
  return out;
}

NormParameters parameters_of(const Case& c, const Inputs& in) {
  NormParameters parameters{c.kind, {}, std::vector<double>(static_cast<size_t>(c.cols), 0.0), 1e-5};
  for (int64_t i = 0; i < c.cols; ++i) {
    parameters.gain.push_back(static_cast<double>(in.weight.at(i)) + (c.zero_centered ? 1 : 0));
  }
  return parameters;
}

void expect_near_oracle(const Case& c, const Inputs& in, const Outputs& out) {
  const NormParameters parameters = parameters_of(c, in);
  std::vector<double> dweight(static_cast<size_t>(c.cols)), dbias(dweight), dweight_magnitude(dweight),
      dbias_magnitude(dweight), dweight_tiny(dweight);
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::vector<double> x = row_of(in.x, row, c.cols), dy = row_of(in.dy, row, c.cols);
    const double mean = c.kind == NormKind::kLayerNorm ? static_cast<double>(in.mean.at(row)) : 0;
    const double rstd = static_cast<double>(in.rstd.at(row));
    const NormGradient exact = norm_gradient_oracle(parameters, x, dy, mean, rstd);
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t place = row * c.cols + static_cast<int64_t>(i);
      const double added = c.dresidual ? static_cast<double>(in.dresidual.at(place)) : 0;
      const double bound = exact.bound[i] + gamma(1) * (std::abs(exact.dx[i]) + std::abs(added) + exact.bound[i]);
      EXPECT_NEAR(out.dx.at(place), exact.dx[i] + added, bound) << row << ", " << i;
      const double term = dy[i] * (x[i] - mean) * rstd;
      dweight[i] += term;
      dweight_magnitude[i] += std::abs(term);
      dweight_tiny[i] += (1 + std::abs(dy[i]) + rstd) * 0x1p-150;  // either product may be subnormal
      dbias[i] += dy[i];
      dbias_magnitude[i] += std::abs(dy[i]);
    }
  }
  const double depth = column_sum_depth(c.rows);
  for (size_t i = 0; i < dweight.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i);
    EXPECT_NEAR(out.dweight.at(column), dweight[i], gamma(depth + 3) * dweight_magnitude[i] + dweight_tiny[i]) << i;
    EXPECT_NEAR(out.dbias.at(column), dbias[i], gamma(depth) * dbias_magnitude[i]) << i;
  }
}

template <class Check>
void for_cases(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      for (Format x_format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
        for (const auto& [rows, cols] :
             {std::pair<int64_t, int64_t>{5, 1}, {63, 15}, {64, 16}, {65, 17}, {201, 65}, {4, 1025}}) {
          for (bool second : {false, true}) {
            const Case c{.kind = kind,
                         .rows = rows,
                         .cols = cols,
                         .dy_format = second ? Format::kBf16 : Format::kFp32,
                         .x_format = x_format,
                         .zero_centered = second,
                         .dresidual = second};
            SCOPED_TRACE(describe(c));
            check(c);
          }
        }
      }
    }
  }
}

TEST(NormGradientOracle, AgreesWithDifferencesOfTheForwardOracle) {
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const Case c{.kind = kind, .rows = 1, .cols = 9};
    const Inputs in(c);
    const NormParameters parameters = parameters_of(c, in);
    const std::vector<double> x = row_of(in.x, 0, c.cols), dy = row_of(in.dy, 0, c.cols);
    const NormRow forward = norm_oracle(parameters, x);
    const NormGradient gradient = norm_gradient_oracle(parameters, x, dy, forward.mean, forward.rstd);
    constexpr double kStep = 0x1p-14;
    const auto cols = static_cast<double>(c.cols);
    double sum = 0, squares = 0, largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double g = dy[i] * parameters.gain[i];
      sum += std::abs(g);
      squares += g * g;
      largest = std::max(largest, std::abs(x[i]));
    }
    // Third derivative: a row is sqrt(cols) v / |v| with |v| = sqrt(cols) / rstd, and that of v / |v| at most 4 / |v|^3.
    const double third = 4 * std::pow(forward.rstd, 3) / cols * std::sqrt(squares);
    // Roundings: the sum of a row, of its squares and the loss's own, and a few operations on each term.
    const double error = difference_error(kStep, third, 3 * cols + 12, 2 * largest * forward.rstd * sum);
    auto loss = [&](std::vector<double> moved, size_t i, double step) {
      moved[i] += step;
      const NormRow row = norm_oracle(parameters, moved);
      double total = 0;
      for (size_t j = 0; j < dy.size(); ++j) total += dy[j] * row.y[j];
      return total;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      const double slope = (loss(x, i, kStep) - loss(x, i, -kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient.dx[i], slope, error) << i;
    }
  }
}

TEST(NormBackward, IsWithinTheBoundOfDouble) {
  for_cases([](const Case& c) {
    Inputs in(c);
    expect_near_oracle(c, in, run(c, in));
  });
}

TEST(NormBackward, NarrowGradientsAreTheFp32GradientEncoded) {
  for_cases([](Case c) {
    c.dresidual = false;
    Inputs in(c);
    const Outputs wide = run(c, in);
    for (Format dx_format : {Format::kBf16, Format::kFp16}) {
      c.dx_format = dx_format;
      const Outputs narrow = run(c, in);
      for (int64_t i = 0; i < wide.dx.count(); ++i) {
        ASSERT_EQ(narrow.dx.code(i), format::encode(dx_format, wide.dx.at(i))) << i;
      }
      EXPECT_TRUE(same(narrow.dweight, wide.dweight) && same(narrow.dbias, wide.dbias));
    }
  });
}

TEST(NormBackward, AddsTheNarrowResidualGradientBeforeRounding) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    Case c{.rows = 5, .dx_format = Format::kBf16};
    Inputs in(c);
    Case wide_case = c;
    wide_case.dx_format = Format::kFp32;
    const Outputs wide = run(wide_case, in);
    c.dresidual = true;
    const Outputs narrow = run(c, in);
    for (int64_t i = 0; i < wide.dx.count(); ++i) {
      ASSERT_EQ(narrow.dx.code(i), format::encode(Format::kBf16, wide.dx.at(i) + in.dresidual.at(i))) << i;
    }
  }
}

TEST(NormBackward, EachSumIsOptional) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case c{.rows = 130};
    Inputs in(c);
    const Outputs both = run(c, in);
    EXPECT_TRUE(same(run(c, in, kWeight).dweight, both.dweight));
    EXPECT_TRUE(same(run(c, in, kBias).dbias, both.dbias));
    EXPECT_TRUE(same(run(c, in, kNeither).dx, both.dx));
  }
}

TEST(NormBackward, GivesTheSameBitsOnEveryIsaAndThreadCount) {
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 1}, {4500, 33}, {257, 1027}}) {
      const Case c{.kind = kind,
                   .rows = rows,
                   .cols = cols,
                   .dy_format = Format::kBf16,
                   .x_format = Format::kBf16,
                   .dx_format = Format::kBf16,
                   .dresidual = true};
      Inputs in(c);
      std::optional<Outputs> first;
      for (runtime::Isa isa : isas_present()) {
        for (int threads : {1, 2, 3, 7}) {
          const runtime::ScopedIsa scope(isa);
          const ScopedThreads team(threads);
          const Outputs out = run(c, in);
          if (!first) first = out;
          EXPECT_TRUE(same(out.dx, first->dx) && same(out.dweight, first->dweight) && same(out.dbias, first->dbias))
              << describe(c) << " " << runtime::name(isa) << " " << threads;
        }
      }
    }
  }
}

TEST(NormBackward, ANonFiniteGradientPoisonsItsRowAndItsColumnsOnly) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (float poison : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const Case c{.rows = 70};
      Inputs in(c);
      const Outputs clean = run(c, in);
      in.dy.set(66 * c.cols + 20, poison);
      const Outputs out = run(c, in);
      for (int64_t i = 0; i < out.dx.count(); ++i) {
        if (i / c.cols == 66) {
          ASSERT_FALSE(std::isfinite(out.dx.at(i)));
        } else {
          ASSERT_EQ(out.dx.code(i), clean.dx.code(i));
        }
      }
      for (int64_t i = 0; i < c.cols; ++i) {
        ASSERT_EQ(std::isfinite(out.dweight.at(i)), i != 20);
        ASSERT_EQ(std::isfinite(out.dbias.at(i)), i != 20);
      }
    }
  }
}

TEST(NormBackward, NoRowsGiveZeroSums) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case c{.rows = 0};
    Inputs in(c);
    const Outputs out = run(c, in);
    for (int64_t i = 0; i < c.cols; ++i) {
      EXPECT_EQ(out.dweight.at(i), 0.0f);
      EXPECT_EQ(out.dbias.at(i), 0.0f);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::norm_backward_test
