#include "plimsoll/kernels/sgd/sgd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Array;

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 33, 70001};

struct Rule {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, is_first = false;
};
constexpr Rule kRules[] = {
    {},
    {.weight_decay = 0.1},
    {.momentum = 0.9, .weight_decay = 0.01},
    {.momentum = 0.9, .dampening = 0.5, .is_first = true},
    {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
};

struct Tensors {
  Array weight, grad, buffer;
  Format grad_format;

  Tensors(Format format, int64_t count)
      : weight(Format::kFp32, testing::sample(count, 1)),
        grad(format, testing::sample(count, 2, 0, 1e-2f)),
        buffer(Format::kFp32, testing::sample(count, 3, 0, 1e-2f)),
        grad_format(format) {}

  float step(const Rule& rule) {
    return sgd({.weight = weight.floats(),
                .grad = grad.data(),
                .grad_format = grad_format,
                .momentum_buffer = rule.momentum == 0 ? nullptr : buffer.floats(),
                .is_first = rule.is_first,
                .nesterov = rule.nesterov,
                .count = weight.count(),
                .lr = 0.3,
                .momentum = rule.momentum,
                .dampening = rule.dampening,
                .weight_decay = rule.weight_decay,
                .grad_scale = 0.37f});
  }
};

// The step of one element in double, and the sum of what was added up on the way.
struct Expected {
  double weight = 0, buffer = 0, size = 0;
};
Expected expected(const Rule& rule, double w, double grad, double buffer) {
  const double g = grad * double{0.37f} + rule.weight_decay * w;
  const double g_size = std::fabs(grad) + rule.weight_decay * std::fabs(w);
  Expected e{.weight = w - 0.3 * g, .buffer = buffer, .size = std::fabs(w) + g_size};
  if (rule.momentum == 0) return e;
  e.buffer = rule.is_first ? g : rule.momentum * buffer + (1 - rule.dampening) * g;
  e.weight = w - 0.3 * (rule.nesterov ? g + rule.momentum * e.buffer : e.buffer);
  e.size += g_size + std::fabs(buffer);
  return e;
}

TEST(Sgd, IsTorchsRuleToRounding) {
  constexpr int kRoundings = 10;  // of coefficients and of what is computed, on any way from an input to a result
  for (const Rule& rule : kRules) {
    for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      const Tensors before(format, 1001);
      Tensors after = before;
      after.step(rule);
      for (int64_t i = 0; i < 1001; ++i) {
        const Expected e =
            expected(rule, double{before.weight.at(i)}, double{before.grad.at(i)}, double{before.buffer.at(i)});
        const double bound = testing::gamma(kRoundings) * e.size + 0x1p-147;
        ASSERT_LE(std::fabs(double{after.weight.at(i)} - e.weight), bound) << i;
        ASSERT_LE(std::fabs(double{after.buffer.at(i)} - e.buffer), bound) << i;
      }
    }
  }
}

TEST(Sgd, SameBitsOnEveryIsaAndThreadCount) {
  for (const Rule& rule : kRules) {
    for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (const int64_t count : kCounts) {
        Tensors first(format, count);
        float amax = 0;
        {
          const runtime::ScopedIsa portable(runtime::Isa::kPortable);
          const testing::ScopedThreads one(1);
          amax = first.step(rule);
        }
        float largest = 0;
        for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(first.weight.at(i)));
        EXPECT_EQ(amax, largest);
        for (const runtime::Isa isa : testing::isas_present()) {
          const runtime::ScopedIsa scope(isa);
          for (const int team : {1, 3}) {
            const testing::ScopedThreads threads(team);
            Tensors again(format, count);
            EXPECT_EQ(again.step(rule), amax);
            EXPECT_TRUE(testing::same(again.weight, first.weight) && testing::same(again.buffer, first.buffer))
                << runtime::name(isa) << " " << count;
            EXPECT_TRUE(again.weight.guards_intact() && again.buffer.guards_intact());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
