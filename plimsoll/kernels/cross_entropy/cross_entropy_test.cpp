#include "plimsoll/kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <optional>
#include <string>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kUnit = 0x1p-24;
constexpr int64_t kIgnored = -7, kChunk = 1024;

struct Case {
  int64_t rows = 5, vocabulary = 37;
  Format format = Format::kFp32;
  float smoothing = 0.0f;
  bool class_weight = false, row_factor = false;
  int64_t gap = 0;  // elements between rows
  float grad_factor = 0.25f;

  int64_t stride() const { return vocabulary + gap; }
  int64_t count() const { return rows * stride(); }
};

std::string describe(const Case& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.vocabulary) + " " +
         std::string(format::info(c.format).name) + " smoothing " + std::to_string(c.smoothing) +
         (c.class_weight ? " weighted" : "") + (c.row_factor ? " with row factors" : "");
}

// Row 1 is ignored, the others have their targets spread over the vocabulary.
std::vector<int64_t> targets_of(const Case& c) {
  std::vector<int64_t> targets;
  for (int64_t row = 0; row < c.rows; ++row) {
    targets.push_back(row == 1 ? kIgnored : (row * 7919 + c.vocabulary / 2) % c.vocabulary);
  }
  return targets;
}
std::vector<float> factors(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  std::vector<float> result(static_cast<size_t>(count));
  for (float& x : result) x = uniform(random);
  return result;
}

struct Result {
  Array loss, grad;
};

enum class Where { kElsewhere, kInPlace };

Result run(const Case& c, const Array& logits, Where where = Where::kElsewhere) {
  Result result{Array(Format::kFp32, c.rows), where == Where::kInPlace ? logits : Array(c.format, c.count())};
  const std::vector<int64_t> targets = targets_of(c);
  const std::vector<float> weight = factors(c.vocabulary, 3), row_factor = factors(c.rows, 4);
  cross_entropy({.rows = c.rows,
                 .vocabulary = c.vocabulary,
                 .logits = where == Where::kInPlace ? result.grad.data() : logits.data(),
                 .logits_stride = c.stride(),
                 .format = c.format,
                 .targets = targets.data(),
                 .ignore_index = kIgnored,
                 .label_smoothing = c.smoothing,
                 .class_weight = c.class_weight ? weight.data() : nullptr,
                 .loss = result.loss.floats(),
                 .grad = result.grad.data(),
                 .grad_stride = c.stride(),
                 .grad_factor = c.grad_factor,
                 .row_factor = c.row_factor ? row_factor.data() : nullptr});
  EXPECT_TRUE(result.loss.guards_intact() && result.grad.guards_intact());
  return result;
}

struct Exact {
  double loss = 0, loss_bound = 0;
  std::vector<double> grad, grad_bound;
};

// In double, with the bounds of docs/numerics.md.
Exact oracle(const Case& c, const std::vector<double>& x, int64_t row) {
  const auto v = static_cast<double>(c.vocabulary), smoothing = static_cast<double>(c.smoothing);
  const auto target = static_cast<size_t>(targets_of(c)[static_cast<size_t>(row)]);
  const double weight = c.class_weight ? static_cast<double>(factors(c.vocabulary, 3)[target]) : 1;
  const double row_factor = c.row_factor ? static_cast<double>(factors(c.rows, 4)[static_cast<size_t>(row)]) : 1;
  const double factor = weight * row_factor * static_cast<double>(c.grad_factor);
  const double top = *std::max_element(x.begin(), x.end());
  const auto chunks = static_cast<double>((c.vocabulary + kChunk - 1) / kChunk);
  double sum = 0, total = 0, magnitude = 0, sum_error = 0;
  for (double value : x) {
    sum += std::exp(value - top);
    total += value;
    magnitude += std::abs(value);
  }
  // The exponent has three roundings, which exp turns into a relative error, and exp2_down adds 3 ulp = 6 units. The
  // sum passes 26 additions a chunk, and 3 ulp more with each chunk that raises the maximum.
  auto relative = [&](double value) { return gamma(3 * (top - value) + 6); };
  for (double value : x) sum_error += std::exp(value - top) / sum * relative(value);
  sum_error += gamma(26 + 6 * chunks + 2) + v * 0x1p-126;
  const double log_sum = std::log(sum), mean = total / v;
  auto negative_log = [&](double value) { return top - value + log_sum; };
  Exact exact;
  exact.loss = weight * ((1 - smoothing) * negative_log(x[target]) + smoothing * negative_log(mean));
  auto log_bound = [&](double value) { return gamma(7) * (std::abs(top - value) + log_sum) + sum_error; };
  exact.loss_bound =
      weight * ((1 - smoothing) * log_bound(x[target]) + smoothing * (log_bound(mean) + gamma(23) * magnitude / v)) +
      kUnit * std::abs(exact.loss);
  for (size_t i = 0; i < x.size(); ++i) {
    const double p = std::exp(x[i] - top) / sum, share = smoothing / v, onehot = i == target ? 1 - smoothing : 0;
    exact.grad.push_back(factor * (p - onehot - share));
    const double p_bound = p * (relative(x[i]) + gamma(6) + sum_error + gamma(8)) + 0x1p-126 / sum;
    exact.grad_bound.push_back((factor * (p_bound + gamma(8) * (p + onehot + share))) * kSecondOrder);
  }
  return exact;
}

void expect_matches(const Case& c, const Array& logits) {
  const Result result = run(c, logits);
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<double> x;
    for (int64_t i = 0; i < c.vocabulary; ++i) x.push_back(static_cast<double>(logits.at(row * c.stride() + i)));
    if (row == 1) {
      ASSERT_EQ(result.loss.code(row), 0u);
      for (int64_t i = 0; i < c.vocabulary; ++i) ASSERT_EQ(result.grad.code(row * c.stride() + i), 0u);
      continue;
    }
    const Exact exact = oracle(c, x, row);
    ASSERT_NEAR(result.loss.at(row), exact.loss, exact.loss_bound) << describe(c) << " row " << row;
    for (int64_t i = 0; i < c.vocabulary; ++i) {
      const auto place = static_cast<size_t>(i);
      ASSERT_NEAR(result.grad.at(row * c.stride() + i), exact.grad[place],
                  narrow_bound(c.format, exact.grad[place], exact.grad_bound[place]))
          << describe(c) << " row " << row << ", " << i;
    }
    for (int64_t i = c.vocabulary; i < c.stride() && row + 1 < c.rows; ++i) {
      ASSERT_TRUE(std::isnan(result.grad.at(row * c.stride() + i)));  // as the array was made
    }
  }
}

template <class Check>
void on_every_isa(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    check();
  }
}

TEST(CrossEntropy, IsWithinTheBoundOfDouble) {
  on_every_isa([] {
    for (int64_t vocabulary : {1, 2, 15, 16, 17, 63, 64, 65, 127, 1023, 1024, 1025, 2077, 5003}) {
      for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
        for (float smoothing : {0.0f, 0.1f}) {
          const Case c{.vocabulary = vocabulary, .format = format, .smoothing = smoothing};
          expect_matches(c, Array(format, sample(c.count(), 1, 0.5f, 3.0f)));
        }
      }
    }
  });
}

TEST(CrossEntropy, IsWithinTheBoundForALargeVocabulary) {
  const Case c{.rows = 3, .vocabulary = 50257, .format = Format::kBf16};
  expect_matches(c, Array(c.format, sample(c.count(), 1, 0.0f, 2.0f)));
}

TEST(CrossEntropy, TakesWeightsFactorsAndRowsThatAreApart) {
  on_every_isa([] {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      Case c{.vocabulary = 77, .format = format, .class_weight = true, .row_factor = true, .gap = 5};
      expect_matches(c, Array(format, sample(c.count(), 2)));
      c.class_weight = false;
      c.smoothing = 0.2f;
      c.grad_factor = 3.0f;
      expect_matches(c, Array(format, sample(c.count(), 2)));
    }
  });
}

TEST(CrossEntropy, FollowsAMaximumThatRisesOrFalls) {
  on_every_isa([] {
    for (float slope : {1e-6f, 0.01f, -0.01f, 0.2f}) {
      const Case c{.rows = 1, .vocabulary = 4500};
      std::vector<float> x(static_cast<size_t>(c.count()));
      for (size_t i = 0; i < x.size(); ++i) x[i] = slope * static_cast<float>(i);
      expect_matches(c, Array(c.format, x));
    }
  });
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  on_every_isa([] {
    for (float offset : {1e30f, -1e30f, 1e4f}) {
      const Case c{.rows = 1, .vocabulary = 3};
      const Result result = run(c, Array(c.format, std::vector<float>{offset, offset, offset}));
      EXPECT_EQ(result.loss.at(0), std::log(3.0f));
      const Exact exact = oracle(c, std::vector<double>(3, double{offset}), 0);
      EXPECT_NEAR(result.grad.at(0), exact.grad[0], exact.grad_bound[0]);
    }
  });
}

TEST(CrossEntropy, MinusInfinityHasNoProbability) {
  on_every_isa([] {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      const Case c{.rows = 1, .vocabulary = 3000, .format = format};
      const int64_t target = targets_of(c)[0];
      std::vector<float> x(static_cast<size_t>(c.vocabulary), -kInf);  // the first chunk holds nothing else
      x[static_cast<size_t>(target)] = x[2999] = -200.0f;
      const Result result = run(c, Array(format, x));
      EXPECT_EQ(result.loss.at(0), std::log(2.0f));
      for (int64_t i = 0; i < c.vocabulary; ++i) {
        const float expected = i == target ? -0.125f : i == 2999 ? 0.125f : 0.0f;
        ASSERT_EQ(result.grad.at(i), expected) << i;
      }
      x[static_cast<size_t>(target)] = -kInf;
      const Result impossible = run(c, Array(format, x));
      EXPECT_EQ(impossible.loss.at(0), kInf);
      EXPECT_EQ(impossible.grad.at(target), -0.25f);
    }
  });
}

TEST(CrossEntropy, ANonFiniteLogitPoisonsItsRowAndNoOther) {
  on_every_isa([] {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (float poison : {kInf, kNan}) {
        for (int64_t place : {0, 1100, 2004}) {
          const Case c{.vocabulary = 2005, .format = format};
          Array x(format, sample(c.count(), 1));
          const Result clean = run(c, x);
          x.set(2 * c.vocabulary + place, poison);
          const Result result = run(c, x);
          for (int64_t row = 0; row < c.rows; ++row) {
            ASSERT_TRUE(row == 2 ? std::isnan(result.loss.at(row)) : same(result.loss, clean.loss, row));
          }
          for (int64_t i = 0; i < c.count(); ++i) {
            ASSERT_TRUE(i / c.vocabulary == 2 ? std::isnan(result.grad.at(i)) : same(result.grad, clean.grad, i)) << i;
          }
        }
      }
      const Case c{.rows = 1, .format = format};
      const Result nothing = run(c, Array(format, std::vector<float>(37, -kInf)));
      EXPECT_TRUE(std::isnan(nothing.loss.at(0)));
      for (int64_t i = 0; i < c.count(); ++i) ASSERT_TRUE(std::isnan(nothing.grad.at(i)));
    }
  });
}

TEST(CrossEntropy, ANanOfAnyBitsAsAFactorMakesItsRowNan) {
  for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (const uint32_t bits : {0x7fffffffu, 0x7f800001u, 0xffffffffu}) {
      const Case c{.rows = 2, .vocabulary = 150, .format = format};
      const Array logits(format, sample(c.count(), 1));
      const float row_factor[] = {std::bit_cast<float>(bits), 1.0f};
      const int64_t targets[] = {3, 4};
      on_every_isa([&] {
        Array loss(Format::kFp32, c.rows), grad(format, c.count());
        cross_entropy({.rows = c.rows,
                       .vocabulary = c.vocabulary,
                       .logits = logits.data(),
                       .logits_stride = c.stride(),
                       .format = format,
                       .targets = targets,
                       .ignore_index = kIgnored,
                       .loss = loss.floats(),
                       .grad = grad.data(),
                       .grad_stride = c.stride(),
                       .row_factor = row_factor});
        for (int64_t i = 0; i < c.count(); ++i) EXPECT_EQ(std::isnan(grad.at(i)), i < c.vocabulary) << i;
      });
    }
  }
}

TEST(CrossEntropy, GradientSumsToZeroAndOracleAgreesWithDifferences) {
  const Case c{.rows = 1, .vocabulary = 5, .smoothing = 0.1f, .grad_factor = 1.0f};
  const std::vector<double> x = {0.3, -1.2, 2.0, 0.1, 0.7};
  const Exact exact = oracle(c, x, 0);
  constexpr double kStep = 0x1p-17;
  // Third derivative: that of the logarithm of a sum of exponentials is p (1 - p) (1 - 2 p).
  constexpr double kThird = 1.0 / 8;
  // Roundings of numbers of at most top - x + log(sum) < 5: of five exponentials and their sum, 3; of what follows, 6.
  const double error = difference_error(kStep, kThird, 9, 5);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> up = x, down = x;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR(exact.grad[i], (oracle(c, up, 0).loss - oracle(c, down, 0).loss) / (2 * kStep), error);
    sum += exact.grad[i];
  }
  // Sums of p and q are 1: that of the exponentials rounds 5 times, quotients and differences 5, this sum 5.
  EXPECT_NEAR(sum, 0, 15 * 0x1p-53);
}

TEST(CrossEntropy, BoundsAreTightEnoughToFail) {
  const Case c{.vocabulary = 5003};
  const Array logits(c.format, sample(c.count(), 1, 0.5f, 3.0f));
  const Exact exact = oracle(c, row_of(logits, 0, c.vocabulary), 0);
  EXPECT_GT(1e-5 * exact.loss, exact.loss_bound);
  for (size_t i = 0; i < exact.grad.size(); ++i)
    ASSERT_GT(1e-4 * std::abs(exact.grad[i]) + 0x1p-120, exact.grad_bound[i]);
}

TEST(CrossEntropy, GivesTheSameBitsOnEveryIsaThreadCountAndInPlace) {
  for (const int64_t vocabulary : {1, 77, 4099}) {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      const Case c{.rows = 23, .vocabulary = vocabulary, .format = format, .smoothing = 0.1f};
      const Array x(format, sample(c.count(), 1, 0.0f, 5.0f));
      std::optional<Result> first;
      for (runtime::Isa isa : isas_present()) {
        for (int threads : {1, 2, 3, 7}) {
          const runtime::ScopedIsa scope(isa);
          const ScopedThreads team(threads);
          for (Where where : {Where::kElsewhere, Where::kInPlace}) {
            const Result result = run(c, x, where);
            if (!first) first = result;
            EXPECT_TRUE(same(result.loss, first->loss) && same(result.grad, first->grad))
                << describe(c) << " " << runtime::name(isa) << " " << threads;
          }
        }
      }
    }
  }
}

// A device is given the mean's factor in the rows' place.
TEST(CrossEntropy, AFactorOfAllRowsHasTheBitsOfTheSameInEach) {
  const Case c{.vocabulary = 77, .class_weight = true};
  const Array x(c.format, sample(c.count(), 1));
  const std::vector<int64_t> targets = targets_of(c);
  const std::vector<float> weight = factors(c.vocabulary, 3), third(static_cast<size_t>(c.rows), 1.0f / 3);
  const auto grad = [&](float factor, const float* each) {
    Array loss(Format::kFp32, c.rows), result(c.format, c.count());
    cross_entropy({.rows = c.rows,
                   .vocabulary = c.vocabulary,
                   .logits = x.data(),
                   .logits_stride = c.stride(),
                   .targets = targets.data(),
                   .ignore_index = kIgnored,
                   .class_weight = weight.data(),
                   .loss = loss.floats(),
                   .grad = result.data(),
                   .grad_stride = c.stride(),
                   .grad_factor = factor,
                   .row_factor = each});
    return result;
  };
  EXPECT_TRUE(same(grad(1.0f / 3, nullptr), grad(1.0f, third.data())));
}

TEST(CrossEntropy, GivesTheSameLossWithoutAGradientAndNothingForNoRows) {
  on_every_isa([] {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      const Case c{.vocabulary = 2077, .format = format};
      const Array logits(format, sample(c.count(), 1));
      const Result with = run(c, logits);
      Array loss(Format::kFp32, c.rows);
      const std::vector<int64_t> targets = targets_of(c);
      CrossEntropy args{.rows = c.rows,
                        .vocabulary = c.vocabulary,
                        .logits = logits.data(),
                        .logits_stride = c.stride(),
                        .format = format,
                        .targets = targets.data(),
                        .ignore_index = kIgnored,
                        .loss = loss.floats()};
      cross_entropy(args);
      EXPECT_TRUE(same(loss, with.loss));
      args.rows = 0;
      args.logits = nullptr;
      cross_entropy(args);
    }
  });
}

}  // namespace
}  // namespace plimsoll::kernels
