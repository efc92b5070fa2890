#include "plimsoll/kernels/adam16/adam16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Array;

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 33, 70001};
constexpr double kUnit = 0x1p-24;  // half an ulp of FP32 at 1

struct Rule {
  double weight_decay = 0, l2 = 0;
  bool maximize = false;
  double step = 5;
};
constexpr Rule kRules[] = {{},
                           {.weight_decay = 0.1},
                           {.l2 = 0.1},
                           {.weight_decay = 0.1, .maximize = true},
                           {.l2 = 0.1, .maximize = true},
                           {.weight_decay = 0.1, .step = 1},
                           {.step = 100000}};

std::vector<float> squares(std::vector<float> x) {
  for (float& value : x) value *= value;
  return x;
}

struct Tensors {
  Format format;
  Array weight, grad, moment1, moment2;

  Tensors(Format f, int64_t count)
      : format(f),
        weight(f, testing::sample(count, 1)),
        grad(f, testing::sample(count, 2, 0, 0.1f)),
        moment1(f, testing::sample(count, 3, 0, 0.1f)),
        moment2(f, squares(testing::sample(count, 4, 0, 0.1f))) {}

  Adam16 args(const Rule& rule) {
    return {.format = format,
            .weight = weight.data(),
            .grad = grad.data(),
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .count = weight.count(),
            .lr = 0.03,
            .beta2 = 0.95,
            .weight_decay = rule.weight_decay,
            .l2 = rule.l2,
            .maximize = rule.maximize,
            .step = rule.step};
  }
  void step(const Rule& rule) { adam16(args(rule)); }
};

// A number in double, and what FP32 may miss it by: a unit for each rounding on the way, those of coefficients included.
struct Number {
  double value = 0, error = 0;
};

Number rounded(Number x, double roundings, double magnitude) {
  return {x.value, x.error + testing::gamma(roundings) * magnitude + 0x1p-147};
}

struct Expected {
  Number weight, moment1, moment2;
};

Expected expected(const Adam16& a, double w, double grad, double m, double v) {
  const double signed_grad = a.maximize ? -grad : grad;
  const Number g = rounded({signed_grad + a.l2 * w, 0}, 2, std::fabs(grad) + std::fabs(a.l2 * w));
  const double share1 = 1 - a.beta1, share2 = 1 - a.beta2;
  const double g_magnitude = std::fabs(g.value) + g.error;
  const Number m_new =
      rounded({a.beta1 * m + share1 * g.value, share1 * g.error}, 3, a.beta1 * std::fabs(m) + share1 * g_magnitude);
  const Number v_new = rounded({a.beta2 * v + share2 * g.value * g.value, share2 * 2 * g_magnitude * g.error}, 4,
                               a.beta2 * v + share2 * g_magnitude * g_magnitude);
  const double correction = std::sqrt(1 - std::pow(a.beta2, a.step));
  const double highest = std::sqrt(v_new.value + v_new.error) / correction;
  const double lowest = std::sqrt(std::max(v_new.value - v_new.error, 0.0)) / correction;
  const double root = std::sqrt(v_new.value) / correction;
  const Number below = rounded({root + a.eps, std::max(highest - root, root - lowest)}, 4, highest + a.eps);
  const double step_size = a.lr / (1 - std::pow(a.beta1, a.step));
  const double change = step_size * m_new.value / below.value, least_below = below.value - below.error;
  const double change_error = step_size * (std::fabs(m_new.value) + m_new.error) / least_below - std::fabs(change) +
                              step_size * m_new.error / least_below;
  const double kept = w * (1 - a.lr * a.weight_decay);
  const Number w_new = rounded({kept - change, change_error}, 4, std::fabs(kept) + std::fabs(change) + change_error);
  return {.weight = w_new, .moment1 = m_new, .moment2 = v_new};
}

// Elements that are not within their bounds.
int64_t count_misses(const Tensors& before, const Tensors& after, const Adam16& args) {
  int64_t misses = 0;
  const auto is_near = [&](float x, const Number& y) {
    const double bound = testing::narrow_bound(before.format, y.value, y.error);
    const double largest = format::info(before.format).max_finite;
    // Beyond the largest number FP16 has Inf.
    if (std::fabs(y.value) + bound > largest) return std::fabs(x) >= largest - bound;
    return std::fabs(double{x} - y.value) <= bound;
  };
  for (int64_t i = 0; i < before.weight.count(); ++i) {
    const Expected e = expected(args, double{before.weight.at(i)}, double{before.grad.at(i)},
                                double{before.moment1.at(i)}, double{before.moment2.at(i)});
    misses += !is_near(after.weight.at(i), e.weight) || !is_near(after.moment1.at(i), e.moment1) ||
              !is_near(after.moment2.at(i), e.moment2);
  }
  return misses;
}

TEST(Adam16, IsWithinRoundingOfDouble) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Rule& rule : kRules) {
      for (const Format format : {Format::kBf16, Format::kFp16}) {
        const Tensors before(format, 3001);
        Tensors after = before;
        after.step(rule);
        EXPECT_EQ(count_misses(before, after, after.args(rule)), 0) << runtime::name(isa);
      }
    }
  }
}

TEST(Adam16, TheBoundTellsAnotherStepOrDecay) {
  for (const Format format : {Format::kBf16, Format::kFp16}) {
    const Tensors before(format, 3001);
    Tensors after = before;
    after.step({});
    EXPECT_GT(count_misses(before, after, after.args({.step = 6})), 0);
    EXPECT_GT(count_misses(before, after, after.args({.weight_decay = 0.1})), 0);
    EXPECT_GT(count_misses(before, after, after.args({.maximize = true})), 0);
  }
}

TEST(Adam16, SameBitsOnEveryIsaAndThreadCount) {
  for (const Rule& rule : kRules) {
    for (const Format format : {Format::kBf16, Format::kFp16}) {
      for (const int64_t count : kCounts) {
        Tensors first(format, count);
        {
          const runtime::ScopedIsa portable(runtime::Isa::kPortable);
          const testing::ScopedThreads one(1);
          first.step(rule);
        }
        for (const runtime::Isa isa : testing::isas_present()) {
          const runtime::ScopedIsa scope(isa);
          for (const int team : {1, 3}) {
            const testing::ScopedThreads threads(team);
            Tensors again(format, count);
            again.step(rule);
            EXPECT_TRUE(testing::same(again.weight, first.weight) && testing::same(again.moment1, first.moment1) &&
                        testing::same(again.moment2, first.moment2))
                << runtime::name(isa) << " " << count;
            for (const Array* array : {&again.weight, &again.grad, &again.moment1, &again.moment2})
              EXPECT_TRUE(array->guards_intact());
          }
        }
      }
    }
  }
}

TEST(Adam16, ANonFiniteGradientPoisonsItsElementAndNoOther) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format format : {Format::kBf16, Format::kFp16}) {
      for (const float poison : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Tensors clean(format, 37), poisoned(format, 37);
        poisoned.grad.set(20, poison);
        clean.step({.l2 = 0.1});
        poisoned.step({.l2 = 0.1});
        for (int64_t i = 0; i < 37; ++i) {
          EXPECT_EQ(std::isnan(poisoned.weight.at(i)), i == 20) << i;
          EXPECT_TRUE(i == 20 || testing::same(poisoned.weight, clean.weight, i)) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
