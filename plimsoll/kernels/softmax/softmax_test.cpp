#include "plimsoll/kernels/softmax/softmax.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <string>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kUnit = 0x1p-24;
const double kTiny = std::exp(-87.0);  // smaller exponentials are 0, and products may be subnormal

// Leading dimensions of the mask that are broadcast.
enum class Mask { kNone, kFull, kOverHeads, kOverHeadsAndQueries, kOverBatchAndHeads };

struct Case {
  SoftmaxShape shape = {2, 3, 5, 37};
  Format format = Format::kFp32;
  float scale = 0.7f;
  Causal causal = Causal::kNone;
  Mask mask = Mask::kNone;

  int64_t rows() const { return shape.batch * shape.heads * shape.queries; }
  int64_t count() const { return rows() * shape.keys; }
};

std::string describe(const Case& c) {
  const SoftmaxShape& s = c.shape;
  return std::to_string(s.batch) + " x " + std::to_string(s.heads) + " x " + std::to_string(s.queries) + " x " +
         std::to_string(s.keys) + " " + std::string(format::info(c.format).name) +
         (c.causal == Causal::kNone      ? ""
          : c.causal == Causal::kTopLeft ? " causal"
                                         : " causal from the last key") +
         " mask " + std::to_string(static_cast<int>(c.mask));
}

struct MaskArray {
  std::vector<uint8_t> bytes;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;

  explicit MaskArray(const Case& c) {
    const SoftmaxShape& s = c.shape;
    const bool queries = c.mask != Mask::kOverHeadsAndQueries, heads = c.mask == Mask::kFull;
    const bool batches = c.mask != Mask::kOverBatchAndHeads;
    int64_t size = s.keys;
    auto extend = [&](bool present, int64_t extent) {
      const int64_t stride = present ? size : 0;
      if (present) size *= extent;
      return stride;
    };
    query_stride = extend(queries, s.queries);
    head_stride = extend(heads, s.heads);
    batch_stride = extend(batches, s.batch);
    if (c.mask == Mask::kNone) return;
    std::mt19937 random(11);
    for (int64_t i = 0; i < size; ++i)
      bytes.push_back(random() % 3 == 0 ? static_cast<uint8_t>(1 + random() % 255) : 0);
    // The first query that the mask knows sees nothing.
    std::fill_n(bytes.begin(), s.keys, static_cast<uint8_t>(255));
  }
};

bool visible(const Case& c, const MaskArray& mask, int64_t row, int64_t key) {
  const SoftmaxShape& s = c.shape;
  const int64_t query = row % s.queries, head = row / s.queries % s.heads, batch = row / (s.queries * s.heads);
  if (c.causal == Causal::kTopLeft && key > query) return false;
  if (c.causal == Causal::kBottomRight && key > query + s.keys - s.queries) return false;
  if (mask.bytes.empty()) return true;
  return mask.bytes[static_cast<size_t>(batch * mask.batch_stride + head * mask.head_stride +
                                        query * mask.query_stride + key)] == 0;
}

Array forward(const Case& c, const Array& x, const MaskArray& mask) {
  Array y(c.format, c.count());
  softmax_forward({.shape = c.shape,
                   .x = x.data(),
                   .y = y.data(),
                   .format = c.format,
                   .scale = c.scale,
                   .causal = c.causal,
                   .mask = mask.bytes.empty() ? nullptr : mask.bytes.data(),
                   .mask_batch_stride = mask.batch_stride,
                   .mask_head_stride = mask.head_stride,
                   .mask_query_stride = mask.query_stride});
  EXPECT_TRUE(y.guards_intact());
  return y;
}

Array backward(const Case& c, const Array& y, const Array& dy) {
  Array dx(c.format, c.count());
  softmax_backward(
      {.shape = c.shape, .y = y.data(), .dy = dy.data(), .dx = dx.data(), .format = c.format, .scale = c.scale});
  EXPECT_TRUE(dx.guards_intact());
  return dx;
}

// Softmax of the visible logits in double.
std::vector<double> oracle(const std::vector<double>& x, const std::vector<bool>& seen, double scale) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (seen[i]) top = std::max(top, scale * x[i]);
  }
  std::vector<double> y(x.size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    if (seen[i]) sum += y[i] = std::exp(scale * x[i] - top);
  }
  for (double& value : y) value = sum > 0 ? value / sum : 0;
  return y;
}

// The exponent z - top has the rounding of z = scale x and of the difference, which exp turns into a relative error and
// to which it adds 2 ulp; the sum inherits the mean of those and D additions; reciprocal and product round once each.
std::vector<double> bound_of(const std::vector<double>& x, const std::vector<double>& y, double scale) {
  double top = -std::numeric_limits<double>::infinity(), shared = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (y[i] > 0) top = std::max(top, scale * x[i]);
  }
  auto relative = [&](size_t i) { return gamma(std::abs(scale * x[i]) + std::abs(scale * x[i] - top) + 4); };
  for (size_t i = 0; i < x.size(); ++i) {
    if (y[i] > 0) shared += y[i] * relative(i);
  }
  std::vector<double> bound;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = relative(i) + shared + gamma(sum_depth(static_cast<int64_t>(x.size())) + 2);
    bound.push_back(y[i] > 0 ? y[i] * error * kSecondOrder + kTiny : 0);
  }
  return bound;
}

template <class Check>
void for_cases(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const SoftmaxShape& shape :
         {SoftmaxShape{2, 3, 1, 1}, SoftmaxShape{2, 2, 3, 15}, SoftmaxShape{1, 2, 16, 16}, SoftmaxShape{2, 2, 17, 17},
          SoftmaxShape{1, 2, 40, 33}, SoftmaxShape{1, 1, 3, 1025}, SoftmaxShape{1, 1, 2, 2077}}) {
      for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
        for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
          for (Mask mask :
               {Mask::kNone, Mask::kFull, Mask::kOverHeads, Mask::kOverHeadsAndQueries, Mask::kOverBatchAndHeads}) {
            const Case c{.shape = shape, .format = format, .causal = causal, .mask = mask};
            SCOPED_TRACE(describe(c));
            check(c);
          }
        }
      }
    }
  }
}

std::vector<bool> seen_in(const Case& c, const MaskArray& mask, int64_t row) {
  std::vector<bool> seen;
  for (int64_t key = 0; key < c.shape.keys; ++key) seen.push_back(visible(c, mask, row, key));
  return seen;
}

TEST(SoftmaxForward, IsWithinTheBoundOfDoubleAndZeroWhereMasked) {
  for_cases([](Case c) {
    if (c.format != Format::kFp32) return;
    const Array x(c.format, sample(c.count(), 1, 0.0f, 4.0f));
    const MaskArray mask(c);
    const Array y = forward(c, x, mask);
    for (int64_t row = 0; row < c.rows(); ++row) {
      const std::vector<double> logits = row_of(x, row, c.shape.keys);
      const std::vector<bool> seen = seen_in(c, mask, row);
      const std::vector<double> exact = oracle(logits, seen, static_cast<double>(c.scale));
      const std::vector<double> bound = bound_of(logits, exact, static_cast<double>(c.scale));
      for (size_t i = 0; i < exact.size(); ++i) {
        const float value = y.at(row * c.shape.keys + static_cast<int64_t>(i));
        ASSERT_NEAR(value, exact[i], bound[i]) << row << ", " << i;
        ASSERT_LE(bound[i], 256 * kUnit);
        ASSERT_TRUE(seen[i] || value == 0.0f);
      }
    }
  });
}

TEST(SoftmaxForward, NarrowOutputsAreTheFp32OutputEncoded) {
  for_cases([](const Case& c) {
    const Array x(c.format, sample(c.count(), 1, 0.0f, 4.0f));
    Array wide_x(Format::kFp32, c.count());
    for (int64_t i = 0; i < c.count(); ++i) wide_x.set(i, x.at(i));
    const MaskArray mask(c);
    Case wide_case = c;
    wide_case.format = Format::kFp32;
    const Array y = forward(c, x, mask), wide = forward(wide_case, wide_x, mask);
    for (int64_t i = 0; i < c.count(); ++i) ASSERT_EQ(y.code(i), format::encode(c.format, wide.at(i))) << i;
  });
}

TEST(SoftmaxForward, RowsWithoutAVisibleKeyAreZero) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    // More queries than keys: the first three see nothing.
    const Case c{.shape = {1, 1, 20, 17}, .causal = Causal::kBottomRight};
    const Array x(c.format, sample(c.count(), 1)), y = forward(c, x, MaskArray(c));
    for (int64_t i = 0; i < c.count(); ++i) ASSERT_EQ(y.at(i) == 0.0f, i % 17 > i / 17 - 3) << i;
  }
}

TEST(SoftmaxForward, LargeLogitsDoNotOverflow) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case c{.shape = {1, 1, 1, 3}, .scale = 1.0f};
    const Array y = forward(c, Array(Format::kFp32, std::vector<float>{1e30f, -kInf, 1e30f}), MaskArray(c));
    EXPECT_EQ(y.at(0), 0.5f);
    EXPECT_EQ(y.at(1), 0.0f);
    EXPECT_EQ(y.at(2), 0.5f);
  }
}

TEST(SoftmaxForward, ANonFiniteLogitPoisonsItsRowUnlessMasked) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (float poison : {kInf, kNan}) {
      for (int64_t place : {0, 20, 36}) {
        Case c{.shape = {1, 1, 3, 37}, .mask = Mask::kOverBatchAndHeads};
        MaskArray mask(c);
        std::fill(mask.bytes.begin(), mask.bytes.end(), static_cast<uint8_t>(0));
        Array x(c.format, sample(c.count(), 1));
        const Array clean = forward(c, x, mask);
        x.set(37 + place, poison);
        const Array y = forward(c, x, mask);
        for (int64_t i = 0; i < c.count(); ++i) {
          ASSERT_TRUE(i / 37 == 1 ? std::isnan(y.at(i)) : y.code(i) == clean.code(i)) << i;
        }
        mask.bytes[static_cast<size_t>(37 + place)] = 1;
        const Array masked = forward(c, x, mask);
        for (int64_t i = 0; i < c.count(); ++i) ASSERT_TRUE(std::isfinite(masked.at(i))) << i;
        EXPECT_EQ(masked.at(37 + place), 0.0f);
      }
    }
    const Case c{.shape = {1, 1, 1, 2}};
    const Array y = forward(c, Array(Format::kFp32, std::vector<float>{-kInf, -kInf}), MaskArray(c));
    EXPECT_TRUE(std::isnan(y.at(0)) && std::isnan(y.at(1)));  // nothing is masked, and 0 / 0 has no value
  }
}

TEST(SoftmaxBackward, OracleAgreesWithDifferences) {
  const std::vector<double> x = {0.3, -1.2, 2.0, 0.1}, dy = {1.0, -0.5, 0.25, 2.0};
  const std::vector<bool> seen = {true, true, false, true};
  constexpr double kScale = 0.7, kStep = 0x1p-17;
  // Third derivative: one logit makes each probability a sigmoid of it, whose own is at most 1 / 8, times the sum of |dy|.
  constexpr double kThird = 3.75 / 8 * kScale * kScale * kScale;
  // Roundings of numbers of at most 2: the moved logit, its product, the difference, e^x, three additions and a quotient;
  // then a product and four additions.
  constexpr double kRoundings = 13;
  const std::vector<double> y = oracle(x, seen, kScale);
  double mean = 0;
  for (size_t i = 0; i < x.size(); ++i) mean += y[i] * dy[i];
  for (size_t i = 0; i < x.size(); ++i) {
    auto loss = [&](double step) {
      std::vector<double> moved = x;
      moved[i] += step;
      const std::vector<double> out = oracle(moved, seen, kScale);
      double total = 0;
      for (size_t j = 0; j < dy.size(); ++j) total += dy[j] * out[j];
      return total;
    };
    EXPECT_NEAR(kScale * y[i] * (dy[i] - mean), (loss(kStep) - loss(-kStep)) / (2 * kStep),
                difference_error(kStep, kThird, kRoundings, 2))
        << i;
  }
}

TEST(SoftmaxBackward, IsWithinTheBoundOfDouble) {
  for_cases([](const Case& c) {
    const Array x(c.format, sample(c.count(), 1, 0.0f, 2.0f)), dy(c.format, sample(c.count(), 2));
    const Array y = forward(c, x, MaskArray(c));
    Array wide_y(Format::kFp32, c.count()), wide_dy(Format::kFp32, c.count());
    for (int64_t i = 0; i < c.count(); ++i) {
      wide_y.set(i, y.at(i));
      wide_dy.set(i, dy.at(i));
    }
    Case wide_case = c;
    wide_case.format = Format::kFp32;
    const Array wide = backward(wide_case, wide_y, wide_dy), narrow = backward(c, y, dy);
    for (int64_t row = 0; row < c.rows(); ++row) {
      const std::vector<double> p = row_of(y, row, c.shape.keys), d = row_of(dy, row, c.shape.keys);
      double mean = 0, magnitude = 0;
      for (size_t i = 0; i < p.size(); ++i) {
        mean += p[i] * d[i];
        magnitude += std::abs(p[i] * d[i]);
      }
      for (size_t i = 0; i < p.size(); ++i) {
        const int64_t place = row * c.shape.keys + static_cast<int64_t>(i);
        const double factor = static_cast<double>(c.scale) * p[i], exact = factor * (d[i] - mean);
        // The sum rounds D + 1 times, then three operations, and results may be subnormal.
        const double bound =
            gamma(3) * std::abs(exact) + factor * gamma(sum_depth(c.shape.keys) + 4) * magnitude + kTiny;
        ASSERT_NEAR(wide.at(place), exact, bound) << row << ", " << i;
        ASSERT_EQ(narrow.code(place), format::encode(c.format, wide.at(place)));
        ASSERT_TRUE(p[i] != 0 || wide.at(place) == 0.0f);
      }
    }
  });
}

TEST(SoftmaxBackward, ANonFiniteGradientPoisonsItsRowAndNoOther) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (float poison : {kInf, kNan}) {
      const Case c{.shape = {1, 1, 3, 37}};
      const Array y = forward(c, Array(c.format, sample(c.count(), 1)), MaskArray(c));
      Array dy(c.format, sample(c.count(), 2));
      const Array clean = backward(c, y, dy);
      dy.set(37 + 36, poison);
      const Array dx = backward(c, y, dy);
      for (int64_t i = 0; i < c.count(); ++i) {
        ASSERT_TRUE(i / 37 == 1 ? !std::isfinite(dx.at(i)) : dx.code(i) == clean.code(i)) << i;
      }
    }
  }
}

TEST(Softmax, GivesTheSameBitsOnEveryIsaAndThreadCount) {
  for (const SoftmaxShape& shape :
       {SoftmaxShape{1, 1, 3, 1}, SoftmaxShape{2, 3, 129, 77}, SoftmaxShape{1, 2, 9, 4099}}) {
    for (Format format : {Format::kFp32, Format::kBf16}) {
      const Case c{.shape = shape, .format = format, .causal = Causal::kBottomRight, .mask = Mask::kOverHeads};
      const Array x(format, sample(c.count(), 1, 0.0f, 5.0f)), dy(format, sample(c.count(), 2));
      const MaskArray mask(c);
      std::optional<Array> first, first_back;
      for (runtime::Isa isa : isas_present()) {
        for (int threads : {1, 2, 3, 7}) {
          const runtime::ScopedIsa scope(isa);
          const ScopedThreads team(threads);
          const Array y = forward(c, x, mask), dx = backward(c, y, dy);
          if (!first) first = y;
          if (!first_back) first_back = dx;
          EXPECT_TRUE(same(y, *first) && same(dx, *first_back))
              << describe(c) << " " << runtime::name(isa) << " " << threads;
        }
      }
    }
  }
}

TEST(Softmax, WorksInPlaceAndOnNothing) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kBf16}) {
      const Case c{.format = format, .causal = Causal::kBottomRight};
      Array x(format, sample(c.count(), 1));
      const Array y = forward(c, x, MaskArray(c));
      softmax_forward({.shape = c.shape,
                       .x = x.data(),
                       .y = x.data(),
                       .format = format,
                       .scale = c.scale,
                       .causal = Causal::kBottomRight});
      EXPECT_TRUE(same(x, y));
    }
    for (const SoftmaxShape& shape : {SoftmaxShape{0, 1, 1, 3}, SoftmaxShape{1, 1, 3, 0}, SoftmaxShape{1, 1, 0, 3}}) {
      const Case c{.shape = shape};
      const Array x(c.format, 0);
      backward(c, forward(c, x, MaskArray(c)), x);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
