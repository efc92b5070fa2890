#include "plimsoll/kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/rounding_words.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using runtime::Isa;

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 63, 64, 65, 4097};
constexpr double kUnit = 0x1p-24;  // half an ulp of FP32

std::vector<Isa> present() {
  std::vector<Isa> result;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= runtime::detected_isa()) result.push_back(isa);
  }
  return result;
}

// A tensor in fp32, bf16 or fp16.
struct Buffer {
  Format format = Format::kFp32;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  Buffer(Format f, const std::vector<float>& values) : format(f), wide(values) {
    if (f == Format::kFp32) return;
    wide.clear();
    for (float value : values) narrow.push_back(static_cast<uint16_t>(format::encode(f, value)));
  }
  void* data() { return format == Format::kFp32 ? static_cast<void*>(wide.data()) : narrow.data(); }
  float operator[](size_t i) const { return format == Format::kFp32 ? wide[i] : format::decode(format, narrow[i]); }
  bool operator==(const Buffer& other) const {
    return narrow == other.narrow && wide.size() == other.wide.size() &&
           (wide.empty() || std::memcmp(wide.data(), other.wide.data(), wide.size() * sizeof(float)) == 0);
  }
};

struct Problem {
  Buffer master, grad, moment1, moment2;
  std::vector<uint16_t> narrow;
  float amax = -1;

  Problem(Format grad_format, Format moment_format, int64_t count)
      : master(Format::kFp32, values(count, 1, 0.05)),
        grad(grad_format, values(count, 2, 1e-3)),
        moment1(moment_format, values(count, 3, 1e-3)),
        moment2(moment_format, squares(values(count, 4, 1e-3))),
        narrow(static_cast<size_t>(count)) {}

  AdamW args() {
    return {.master = master.wide.data(),
            .narrow = narrow.data(),
            .grad = grad.data(),
            .grad_format = grad.format,
            .states = moment1.format == Format::kFp32 ? StateKind::kFp32 : StateKind::kBf16,
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .seed = 77,
            .count = static_cast<int64_t>(narrow.size()),
            .lr = 3e-4,
            .beta2 = 0.95,
            .weight_decay = 0.1,
            .step = 5,
            .grad_scale = 0.37f};
  }

  // Normal values with zeros, subnormals, large ones and one outlier.
  static std::vector<float> values(int64_t count, uint32_t seed, double scale) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, scale);
    std::vector<float> x(static_cast<size_t>(count));
    for (float& value : x) value = static_cast<float>(normal(random));
    const float special[] = {0.0f, -0.0f, 0x1p-140f, -0x1p-149f, 0x1p-126f, 1e4f, 1e-20f};
    for (size_t i = 0; i < x.size(); i += 5) x[i] = i % 2 == 0 ? special[i / 5 % 7] : x[i];
    return x;
  }
  static std::vector<float> squares(std::vector<float> x) {
    for (float& value : x) value *= value;
    return x;
  }
};

// One element in double from the same inputs, with a bound on what FP32 arithmetic may do to each result: one unit for
// every rounding on the way (coefficients included), to first order, and a quarter of that again for the higher orders.
struct Expected {
  double m, m_bound, v, v_bound, w, w_bound;
};

Expected reference(const AdamW& a, double w, double grad, double m, double v) {
  const double g = grad * double{a.grad_scale};
  Expected e{};
  e.m = a.beta1 * m + (1 - a.beta1) * g;
  e.m_bound = 4 * kUnit * (std::fabs(a.beta1 * m) + std::fabs((1 - a.beta1) * g)) + 0x1p-147;
  e.v = a.beta2 * v + (1 - a.beta2) * g * g;
  e.v_bound = 7 * kUnit * e.v + 0x1p-147;
  const double step = static_cast<double>(a.step);
  const double root = std::sqrt(e.v / (1 - std::pow(a.beta2, step)));
  const double root_bound = std::sqrt((e.v + e.v_bound) / (1 - std::pow(a.beta2, step))) - root + 4 * kUnit * root;
  const double denominator = root + a.eps;
  const double denominator_bound = root_bound + 2 * kUnit * denominator;
  const double step_size = a.lr / (1 - std::pow(a.beta1, step));
  const double change = step_size * e.m / denominator;
  const double change_bound =
      step_size * e.m_bound / denominator + std::fabs(change) * (denominator_bound / denominator + 4 * kUnit);
  const double kept = w * (1 - a.lr * a.weight_decay);
  e.w = kept - change;
  e.w_bound = 1.25 * (change_bound + 3 * kUnit * std::fabs(kept) + kUnit * std::fabs(change)) + 0x1p-147;
  return e;
}

TEST(AdamW, IsWithinRoundingOfDouble) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (Format grad : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (int64_t count : kCounts) {
        SCOPED_TRACE(std::string(runtime::name(isa)) + " count " + std::to_string(count));
        const Problem before(grad, Format::kFp32, count);
        Problem after = before;
        const AdamW args = after.args();
        adamw(args);
        for (size_t i = 0; i < before.narrow.size(); ++i) {
          const Expected e = reference(args, double{before.master[i]}, double{before.grad[i]},
                                       double{before.moment1[i]}, double{before.moment2[i]});
          ASSERT_LE(std::fabs(double{after.moment1[i]} - e.m), e.m_bound) << i;
          ASSERT_LE(std::fabs(double{after.moment2[i]} - e.v), e.v_bound) << i;
          ASSERT_LE(std::fabs(double{after.master[i]} - e.w), e.w_bound) << i;
        }
      }
    }
  }
}

TEST(AdamW, SameBitsOnEveryIsaAndThreadCount) {
  const int threads = runtime::threads();
  for (Format grad : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (Format moment : {Format::kFp32, Format::kBf16}) {
      for (int64_t count : kCounts) {
        Problem first(grad, moment, count);
        {
          const runtime::ScopedIsa scope(Isa::kPortable);
          runtime::set_threads(1);
          first.amax = adamw(first.args());
        }
        for (Isa isa : present()) {
          const runtime::ScopedIsa scope(isa);
          for (int team : {1, 3}) {
            SCOPED_TRACE(std::string(runtime::name(isa)) + " count " + std::to_string(count));
            runtime::set_threads(team);
            Problem again(grad, moment, count);
            again.amax = adamw(again.args());
            EXPECT_TRUE(again.master == first.master);
            EXPECT_TRUE(again.moment1 == first.moment1);
            EXPECT_TRUE(again.moment2 == first.moment2);
            EXPECT_EQ(again.narrow, first.narrow);
            EXPECT_EQ(again.amax, first.amax);
          }
        }
      }
    }
  }
  runtime::set_threads(threads);
}

TEST(AdamW, L2IsPartOfTheGradient) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    Problem coupled(Format::kFp32, Format::kFp32, 1001), summed = coupled;
    AdamW args = coupled.args();
    args.l2 = 0.25;
    for (size_t i = 0; i < summed.narrow.size(); ++i)
      summed.grad.wide[i] = std::fma(0.25f, summed.master[i], summed.grad[i] * args.grad_scale);
    adamw(args);
    AdamW plain = summed.args();
    plain.grad_scale = 1;
    adamw(plain);
    EXPECT_TRUE(coupled.master == summed.master);
    EXPECT_TRUE(coupled.moment1 == summed.moment1 && coupled.moment2 == summed.moment2);
  }
}

TEST(AdamW, WritesTheNewWeightInOtherFormats) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (Format narrow : {Format::kBf16, Format::kFp16}) {
      Problem problem(Format::kFp32, Format::kFp32, 1001);
      AdamW args = problem.args();
      args.narrow_format = narrow;
      float amax = 0;
      const float returned = adamw(args);
      for (size_t i = 0; i < problem.narrow.size(); ++i) {
        const float w = problem.master[i];
        amax = std::max(amax, std::fabs(w));
        ASSERT_EQ(problem.narrow[i], format::encode(narrow, w)) << w;
      }
      EXPECT_EQ(returned, amax);
    }
  }
}

TEST(AdamW, Bf16MomentsRoundAsTheFormatSays) {
  const Problem before(Format::kFp32, Format::kBf16, 4097);
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    Problem narrow = before, wide = before;
    std::vector<float> m, v;
    for (size_t i = 0; i < before.narrow.size(); ++i) {
      m.push_back(before.moment1[i]);
      v.push_back(before.moment2[i]);
    }
    wide.moment1 = Buffer(Format::kFp32, m);
    wide.moment2 = Buffer(Format::kFp32, v);
    adamw(narrow.args());
    adamw(wide.args());
    EXPECT_TRUE(narrow.master == wide.master) << "the weights see the moments before they are rounded";
    const runtime::RoundingWords random{.seed = 77, .step = 5};
    for (size_t i = 0; i < before.narrow.size(); ++i) {
      const uint32_t word = random.word(i);
      const auto upper = static_cast<uint16_t>(word >> 16), lower = static_cast<uint16_t>(word);
      ASSERT_EQ(narrow.moment1.narrow[i], format::Bf16::encode_stochastic_16(wide.moment1[i], upper)) << i;
      ASSERT_EQ(narrow.moment2.narrow[i], format::Bf16::encode_stochastic_16(wide.moment2[i], lower)) << i;
    }
  }
}

// A constant gradient g: the second moment goes to g^2, through changes of 0.1 % that nearest-even BF16 cannot make.
TEST(AdamW, Bf16SecondMomentFollowsSmallChanges) {
  constexpr int64_t kCount = 1024, kSteps = 2000;
  std::vector<float> master(kCount, 0.0f), grad(kCount, 1.0f);
  std::vector<uint16_t> moment1(kCount), moment2(kCount);
  for (int64_t step = 1; step <= kSteps; ++step) {
    adamw({.master = master.data(),
           .grad = grad.data(),
           .states = StateKind::kBf16,
           .moment1 = moment1.data(),
           .moment2 = moment2.data(),
           .seed = 3,
           .count = kCount,
           .step = step});
  }
  double mean = 0;
  for (uint16_t code : moment2) mean += double{format::decode(Format::kBf16, code)} / kCount;
  const double exact = 1 - std::pow(0.999, kSteps);
  // Below 1 a stochastic rounding has a variance of at most (2^-8)^2 / 4, and each step keeps 0.999 of what is there:
  // the variance of one element is below 2^-18 / (1 - 0.999^2), and the mean of 1024 independent ones lies within 6
  // standard deviations.
  EXPECT_NEAR(mean, exact, 6 * std::sqrt(0x1p-18 / (1 - 0.999 * 0.999) / kCount));
}

TEST(AdamW, NonFiniteShowsInTheAmax) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (Format moment : {Format::kFp32, Format::kBf16}) {
        Problem problem(Format::kFp32, moment, 33);
        problem.grad.wide[32] = bad;
        EXPECT_FALSE(std::isfinite(adamw(problem.args())));
        EXPECT_FALSE(std::isfinite(problem.moment1[32])) << "a bf16 moment must not round NaN away";
        EXPECT_TRUE(std::isfinite(problem.master[31]));
      }
    }
  }
}

TEST(AdamW, NothingPastTheEndIsTouched) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (Format moment : {Format::kFp32, Format::kBf16}) {
      const Problem before(Format::kBf16, moment, 80);
      Problem after = before;
      AdamW args = after.args();
      args.count = 67;
      adamw(args);
      for (size_t i = 67; i < 80; ++i) {
        EXPECT_EQ(std::bit_cast<uint32_t>(after.master[i]), std::bit_cast<uint32_t>(before.master[i]));
        EXPECT_EQ(after.moment1[i], before.moment1[i]);
        EXPECT_EQ(after.moment2[i], before.moment2[i]);
        EXPECT_EQ(after.narrow[i], 0);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
