// 8-bit moments, split weights and weights alone in BF16: what the step in FP32 gives is packed here a second time, by
// scalar code after the rules in adamw.h, and compared bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/rounding_words.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Bf16;
using format::Format;
using format::Fp16;
using runtime::Isa;

enum class Weights { kMaster, kSplit, kAlone };

constexpr int64_t kSizes[] = {0, 1, 31, 32, 33, 63, 64, 65, 1000, 4097};
constexpr uint64_t kSeed = 77;
constexpr int64_t kStep = 5;

std::vector<Isa> isas() {
  std::vector<Isa> result;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= runtime::detected_isa()) result.push_back(isa);
  }
  return result;
}

// The rules, one element at a time.

float joined(uint16_t narrow, int8_t correction) {
  const double w16 = double{Bf16::decode(narrow)};
  const int exponent = std::max((narrow >> 7) & 0xff, 1);
  const double half_ulp = std::ldexp(1.0, exponent - 127 - 8);
  return correction == 0 ? Bf16::decode(narrow) : static_cast<float>(w16 + correction / 127.0 * half_ulp);
}

int8_t correction_of(float w, uint16_t narrow) {
  const double w16 = double{Bf16::decode(narrow)};
  if (!std::isfinite(w16)) return 0;
  const double half_ulp = std::ldexp(1.0, std::max((narrow >> 7) & 0xff, 1) - 127 - 8);
  return static_cast<int8_t>(std::nearbyint(127 * std::clamp((double{w} - w16) / half_ulp, -1.0, 1.0)));
}

float expanded1(int8_t code, float scale) {
  const auto x = static_cast<float>(code);
  return x / (254 - std::fabs(x)) * scale;
}

float expanded2(uint8_t code, float scale) {
  const float root = static_cast<float>(code) * (scale * (1 / 255.0f));
  return root * root;
}

// The least FP16 number that is not below, by trying all.
uint16_t scale_above(float amax) {
  if (!std::isfinite(amax)) return 0x7e00;
  uint16_t code = 0;
  while (code < 0x7bff && Fp16::decode(code) < amax) ++code;
  return code;
}

// y = 254 x / (1 + x) and the upper half of the word, in units of 2^-16, down to a whole number. FP32 is off by 3 units at
// most: 1 + x and the reciprocal each move y by 1.1 * 254 / 256, its rounding by a quarter, that to a whole unit by a half.
void expect_code1(int8_t code, float m, float scale, uint32_t word) {
  const float inv_scale = scale > 0 ? 1 / scale : 0.0f;
  const float given = std::fabs(m) * inv_scale, x = given < 1 ? given : 1.0f;
  const double y = std::copysign(65536 * 254 * double{x} / (1 + double{x}), double{m}), random = word >> 16;
  const double off = x == 0 || x == 1 ? 0 : 3;
  ASSERT_LE(code, std::floor((y + off + random) / 65536));
  ASSERT_GE(code, std::floor((y - off + random) / 65536));
}

uint8_t code2(float root, float scale, uint32_t word) {
  const float inv_scale = scale > 0 ? 1 / scale : 0.0f;
  const float given = root * (inv_scale * 255), x = given < 255 ? given : 255.0f;
  const int below = static_cast<int>(x);
  const auto c = static_cast<float>(below);
  const bool goes_up = static_cast<float>(word & 0xffff) * 0x1p-16f * (2 * c + 1) < (x - c) * (x + c);
  return static_cast<uint8_t>(std::max(below + (goes_up ? 1 : 0), x > 0 ? 1 : 0));
}

// Normal values with zeros, subnormals, large ones, and groups of nothing else but zeros or subnormals.
std::vector<float> values(int64_t count, uint32_t seed, double deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  const float special[] = {0.0f, -0.0f, 0x1p-140f, -0x1p-149f, 0x1p-126f, 100.0f, 1e-20f, 0x1p-15f};
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(normal(random));
    const int64_t group = i / 32 % 8;
    x.push_back(group == 2 ? 0.0f : group == 4 ? value * 0x1p-130f : i % 10 == 0 ? special[i / 10 % 8] : value);
  }
  return x;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// A tensor with its states of every kind, of which a step uses what it is asked for.
struct Tensor {
  Weights weights = Weights::kMaster;
  StateKind states = StateKind::kFp32;
  std::vector<float> master, grad, moment1, moment2;
  std::vector<uint16_t> narrow, bf16_1, bf16_2, scale1, scale2;
  std::vector<int8_t> correction, codes1;
  std::vector<uint8_t> codes2;
  float amax = -1;

  Tensor(Weights w, StateKind s, int64_t count)
      : weights(w), states(s), master(values(count, 1, 0.05)), grad(values(count, 2, 1e-3)) {
    const std::vector<float> m = values(count, 3, 1e-3), root = values(count, 4, 1e-3);
    std::mt19937 random(9);
    for (size_t i = 0; i < master.size(); ++i) {
      narrow.push_back(Bf16::encode(master[i]));
      correction.push_back(correction_of(master[i], narrow[i]));
      codes1.push_back(static_cast<int8_t>(static_cast<int>(random() % 255) - 127));
      codes2.push_back(static_cast<uint8_t>(random() % 256));
      bf16_1.push_back(Bf16::encode(m[i]));
      bf16_2.push_back(Bf16::encode(root[i] * root[i]));
      if (i % 32 == 0) {
        scale1.push_back(Fp16::encode(i % 96 == 0 ? 0.0f : std::fabs(m[i])));
        scale2.push_back(Fp16::encode(i % 160 == 0 ? 0.0f : std::fabs(root[i])));
      }
    }
    for (size_t i = 0; i < master.size(); ++i) {
      if (weights == Weights::kSplit) master[i] = joined(narrow[i], correction[i]);
      if (weights == Weights::kAlone) master[i] = Bf16::decode(narrow[i]);
      const bool in_8 = states == StateKind::k8Bit, in_16 = states == StateKind::kBf16;
      const float m8 = expanded1(codes1[i], Fp16::decode(scale1[i / 32]));
      const float v8 = expanded2(codes2[i], Fp16::decode(scale2[i / 32]));
      moment1.push_back(in_8 ? m8 : in_16 ? Bf16::decode(bf16_1[i]) : m[i]);
      moment2.push_back(in_8 ? v8 : in_16 ? Bf16::decode(bf16_2[i]) : root[i] * root[i]);
    }
  }

  AdamW args() {
    const bool in_8 = states == StateKind::k8Bit, in_16 = states == StateKind::kBf16;
    return {.master = weights == Weights::kMaster ? master.data() : nullptr,
            .narrow = weights == Weights::kMaster ? nullptr : narrow.data(),
            .correction = weights == Weights::kSplit ? correction.data() : nullptr,
            .grad = grad.data(),
            .states = states,
            .moment1 = in_8    ? static_cast<void*>(codes1.data())
                       : in_16 ? bf16_1.data()
                               : static_cast<void*>(moment1.data()),
            .moment2 = in_8    ? static_cast<void*>(codes2.data())
                       : in_16 ? bf16_2.data()
                               : static_cast<void*>(moment2.data()),
            .scale1 = scale1.data(),
            .scale2 = scale2.data(),
            .seed = kSeed,
            .count = static_cast<int64_t>(master.size()),
            .lr = 3e-4,
            .beta2 = 0.95,
            .weight_decay = 0.1,
            .step = kStep,
            .grad_scale = 0.37f};
  }

  // The same step in FP32, from the same values.
  Tensor in_fp32() const {
    Tensor wide = *this;
    wide.weights = Weights::kMaster;
    wide.states = StateKind::kFp32;
    adamw(wide.args());
    return wide;
  }

  bool operator==(const Tensor& o) const {
    return same(master, o.master) && same(moment1, o.moment1) && same(moment2, o.moment2) && same(narrow, o.narrow) &&
           same(bf16_1, o.bf16_1) && same(bf16_2, o.bf16_2) && same(scale1, o.scale1) && same(scale2, o.scale2) &&
           same(correction, o.correction) && same(codes1, o.codes1) && same(codes2, o.codes2) &&
           std::bit_cast<uint32_t>(amax) == std::bit_cast<uint32_t>(o.amax);
  }
};

constexpr Weights kWeights[] = {Weights::kMaster, Weights::kSplit, Weights::kAlone};
constexpr StateKind kStates[] = {StateKind::kFp32, StateKind::kBf16, StateKind::k8Bit};

uint32_t word_of(size_t i) { return runtime::RoundingWords{.seed = kSeed, .step = kStep}.word(i); }

void expect_8bit_states(const Tensor& got, const Tensor& wide) {
  for (size_t begin = 0; begin < got.grad.size(); begin += 32) {
    const size_t end = std::min(begin + 32, got.grad.size());
    float amax1 = 0, amax2 = 0;
    for (size_t i = begin; i < end; ++i) {
      amax1 = std::max(amax1, std::fabs(wide.moment1[i]));
      amax2 = std::max(amax2, std::sqrt(wide.moment2[i]));
    }
    ASSERT_EQ(got.scale1[begin / 32], scale_above(amax1)) << begin;
    ASSERT_EQ(got.scale2[begin / 32], scale_above(amax2)) << begin;
    const float scale1 = Fp16::decode(got.scale1[begin / 32]), scale2 = Fp16::decode(got.scale2[begin / 32]);
    for (size_t i = begin; i < end; ++i) {
      ASSERT_NO_FATAL_FAILURE(expect_code1(got.codes1[i], wide.moment1[i], scale1, word_of(i))) << i;
      ASSERT_EQ(got.codes2[i], code2(std::sqrt(wide.moment2[i]), scale2, word_of(i))) << i;
    }
  }
}

TEST(NarrowStates, ArePackedAsTheRulesSay) {
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (Weights weights : kWeights) {
      for (StateKind states : kStates) {
        for (int64_t count : kSizes) {
          SCOPED_TRACE(std::string(runtime::name(isa)) + " count " + std::to_string(count));
          Tensor got(weights, states, count);
          const Tensor wide = got.in_fp32();
          adamw(got.args());
          if (states == StateKind::k8Bit) expect_8bit_states(got, wide);
          for (size_t i = 0; i < got.grad.size(); ++i) {
            if (weights == Weights::kSplit) {
              ASSERT_EQ(got.narrow[i], Bf16::encode(wide.master[i])) << i;
              ASSERT_EQ(got.correction[i], correction_of(wide.master[i], got.narrow[i])) << i;
            } else if (weights == Weights::kAlone) {
              ASSERT_EQ(got.narrow[i], Bf16::encode_stochastic(wide.master[i], ~word_of(i))) << i;
            } else {
              ASSERT_EQ(got.master[i], wide.master[i]) << i;
            }
          }
        }
      }
    }
  }
}

TEST(NarrowStates, HaveTheSameBitsOnEveryIsaAndThreadCount) {
  const int threads = runtime::threads();
  for (Weights weights : kWeights) {
    for (StateKind states : kStates) {
      for (int64_t count : kSizes) {
        Tensor first(weights, states, count);
        {
          const runtime::ScopedIsa scope(Isa::kPortable);
          runtime::set_threads(1);
          first.amax = adamw(first.args());
        }
        for (Isa isa : isas()) {
          const runtime::ScopedIsa scope(isa);
          for (int team : {1, 3}) {
            runtime::set_threads(team);
            Tensor again(weights, states, count);
            again.amax = adamw(again.args());
            EXPECT_TRUE(again == first) << runtime::name(isa) << " count " << count;
          }
        }
      }
    }
  }
  runtime::set_threads(threads);
}

TEST(NarrowStates, APartHasTheBitsOfTheWhole) {
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (Weights weights : kWeights) {
      for (StateKind states : kStates) {
        Tensor whole(weights, states, 1000), parts = whole;
        adamw(whole.args());
        const std::vector<int64_t> cuts = states == StateKind::k8Bit ? std::vector<int64_t>{0, 32, 320, 352, 1000}
                                                                     : std::vector<int64_t>{0, 1, 60, 70, 333, 1000};
        for (size_t part = 0; part + 1 < cuts.size(); ++part) {
          const int64_t from = cuts[part];
          AdamW args = parts.args();
          const int64_t bytes = states == StateKind::kFp32 ? 4 : states == StateKind::kBf16 ? 2 : 1;
          const auto at = [&](void* data, int64_t size) {
            return static_cast<void*>(static_cast<char*>(data) + from * size);
          };
          if (args.master != nullptr) args.master += from;
          if (args.narrow != nullptr) args.narrow = at(args.narrow, 2);
          if (args.correction != nullptr) args.correction += from;
          args.grad = static_cast<const float*>(args.grad) + from;
          args.moment1 = at(args.moment1, bytes);
          args.moment2 = at(args.moment2, bytes);
          args.scale1 += from / 32;
          args.scale2 += from / 32;
          args.first = from;
          args.count = cuts[part + 1] - from;
          adamw(args);
        }
        EXPECT_TRUE(parts == whole) << runtime::name(isa);
      }
    }
  }
}

// The companding as one reads it, in double: FP32 rounds the quotient and two products with it.
TEST(NarrowStates, EachCodeStandsForWhatTheRuleSays) {
  for (int code = -127; code <= 127; ++code) {
    const double y = code / 127.0, x = y / (2 - std::fabs(y)), scale = double{Fp16::decode(0x2e66)};
    const double got = double{expanded1(static_cast<int8_t>(code), static_cast<float>(scale))};
    EXPECT_NEAR(got, x * scale, 2 * 0x1p-24 * std::fabs(x * scale));
  }
}

// A constant gradient g: the second moment goes to g^2, through changes of 0.1 %, and the mean of many is unbiased.
TEST(NarrowStates, AnEightBitSecondMomentFollowsSmallChanges) {
  constexpr int64_t kCount = 4096, kSteps = 1000;
  std::vector<float> master(kCount, 0.0f), grad(kCount, 0.5f);
  for (size_t i = 0; i < grad.size(); i += 32) grad[i] = 1;  // the largest of each group
  std::vector<int8_t> moment1(kCount);
  std::vector<uint8_t> moment2(kCount);
  std::vector<uint16_t> scale1(kCount / 32), scale2(kCount / 32);
  for (int64_t step = 1; step <= kSteps; ++step) {
    adamw({.master = master.data(),
           .grad = grad.data(),
           .states = StateKind::k8Bit,
           .moment1 = moment1.data(),
           .moment2 = moment2.data(),
           .scale1 = scale1.data(),
           .scale2 = scale2.data(),
           .seed = 3,
           .count = kCount,
           .step = step});
  }
  double mean = 0, count = 0;
  for (size_t i = 0; i < moment2.size(); ++i) {
    if (i % 32 == 0) continue;
    mean += double{expanded2(moment2[i], Fp16::decode(scale2[i / 32]))};
    ++count;
  }
  mean /= count;
  const double exact = 0.25 * (1 - std::pow(0.999, kSteps));
  // A rounding has a variance of at most (v_up - v_down)^2 / 4 with v_up - v_down <= (2 * 255 - 1) / 255^2, each step
  // keeps 0.999 of what is there, and the mean of independent ones lies within 6 standard deviations. Each step's FP32
  // arithmetic moves v by at most 12 units of 2^-24 of itself, and 1000 of them add up.
  const double variance = std::pow(509.0 / (255 * 255), 2) / 4 / (1 - 0.999 * 0.999);
  EXPECT_NEAR(mean, exact, 6 * std::sqrt(variance / count) + 1000 * 12 * 0x1p-24 * exact);
}

TEST(NarrowStates, SmallUpdatesAddUpWithoutMasters) {
  for (Weights weights : {Weights::kSplit, Weights::kAlone}) {
    constexpr int64_t kCount = 4096;
    std::vector<uint16_t> narrow(kCount, Bf16::encode(1.0f));
    std::vector<int8_t> correction(kCount);
    std::vector<float> grad(kCount, 1.0f), moment1(kCount), moment2(kCount);
    for (int64_t step = 1; step <= 200; ++step) {
      adamw({.narrow = narrow.data(),
             .correction = weights == Weights::kSplit ? correction.data() : nullptr,
             .grad = grad.data(),
             .moment1 = moment1.data(),
             .moment2 = moment2.data(),
             .seed = 5,
             .count = kCount,
             .lr = 1e-4,
             .weight_decay = 0,
             .step = step});
    }
    double mean = 0;
    for (size_t i = 0; i < narrow.size(); ++i) {
      const bool is_split = weights == Weights::kSplit;
      mean += double{is_split ? joined(narrow[i], correction[i]) : Bf16::decode(narrow[i])} / kCount;
    }
    // 200 steps of lr each, where half a unit of BF16 below 1 is 2^-9, 20 of them. Split, a step is off by half a code,
    // 2^-9 / 254; alone, a step has a variance of at most 2^-16 / 4 and the mean lies within 6 standard deviations.
    const double tolerance = weights == Weights::kSplit ? 200 * 0x1p-9 / 254 : 6 * std::sqrt(200 * 0x1p-18 / kCount);
    EXPECT_NEAR(mean, 0.98, tolerance);
  }
}

TEST(NarrowStates, WhatIsNotFiniteIsNeverStoredAsANumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (Weights weights : kWeights) {
        Tensor tensor(weights, StateKind::k8Bit, 97);
        tensor.grad[70] = bad;
        EXPECT_FALSE(std::isfinite(adamw(tensor.args())));
        EXPECT_TRUE(std::isnan(Fp16::decode(tensor.scale1[2])) && std::isnan(Fp16::decode(tensor.scale2[2])));
        EXPECT_TRUE(std::isfinite(Fp16::decode(tensor.scale1[1])) && std::isfinite(Fp16::decode(tensor.scale2[3])));
        const auto weight = [&](size_t i) {
          return weights == Weights::kMaster ? tensor.master[i] : Bf16::decode(tensor.narrow[i]);
        };
        EXPECT_TRUE(std::isnan(weight(70)));
        EXPECT_TRUE(weights != Weights::kSplit || tensor.correction[70] == 0);
        EXPECT_TRUE(std::isfinite(weight(69)));
        adamw(tensor.args());
        EXPECT_TRUE(std::isnan(weight(69))) << "its group's states are";
        EXPECT_TRUE(std::isfinite(weight(63)) && std::isfinite(weight(96)));
      }
    }
  }
}

TEST(NarrowStates, MagnitudesAboveFp16AreItsLargest) {
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    Tensor tensor(Weights::kMaster, StateKind::k8Bit, 64);
    tensor.grad[3] = -1e9f;
    EXPECT_TRUE(std::isfinite(adamw(tensor.args())));
    EXPECT_EQ(Fp16::decode(tensor.scale1[0]), 65504.0f);
    EXPECT_EQ(tensor.codes1[3], -127);
    EXPECT_EQ(tensor.codes2[3], 255);
  }
}

TEST(NarrowStates, NothingPastTheEndIsTouched) {
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (Weights weights : kWeights) {
      for (StateKind states : kStates) {
        const Tensor before(weights, states, 160);
        Tensor after = before;
        AdamW args = after.args();
        args.count = 67;
        adamw(args);
        const auto expect_kept = [&](const auto& now, const auto& then, size_t from) {
          EXPECT_EQ(std::memcmp(now.data() + from, then.data() + from, (then.size() - from) * sizeof(then[0])), 0);
        };
        expect_kept(after.master, before.master, 67);
        expect_kept(after.narrow, before.narrow, 67);
        expect_kept(after.correction, before.correction, 67);
        expect_kept(after.codes1, before.codes1, 67);
        expect_kept(after.codes2, before.codes2, 67);
        expect_kept(after.bf16_1, before.bf16_1, 67);
        expect_kept(after.scale1, before.scale1, 3);
        expect_kept(after.scale2, before.scale2, 3);
      }
    }
  }
}

// Without a change to it, the largest magnitude that a step returns is that of the weight put together.
TEST(NarrowStates, ASplitWeightIsTheNearestToItsSum) {
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (uint32_t upper = 0; upper < 0x7f80; upper += 97) {
      for (int code = -127; code <= 127; ++code) {
        if (upper == 0 && code < 0) continue;
        uint16_t narrow = static_cast<uint16_t>(upper);
        int8_t correction = static_cast<int8_t>(code);
        float grad = 0, moment1 = 0, moment2 = 0;
        const float w = adamw({.narrow = &narrow,
                               .correction = &correction,
                               .grad = &grad,
                               .moment1 = &moment1,
                               .moment2 = &moment2,
                               .count = 1,
                               .lr = 0,
                               .weight_decay = 0});
        ASSERT_EQ(w, joined(static_cast<uint16_t>(upper), static_cast<int8_t>(code))) << upper << " " << code;
      }
    }
  }
}

// Means over a constant m: y is exact, and so is the largest of a group.
TEST(NarrowStates, TheMeanOfFirstMomentCodesIsExact) {
  constexpr int64_t kCount = 1 << 16;
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (float x : {0.0f, 1e-4f, 0.01f, 0.3f, 0.9f}) {
      std::vector<float> master(kCount), grad(kCount, -x);
      for (size_t i = 0; i < grad.size(); i += 32) grad[i] = -1;
      std::vector<int8_t> moment1(kCount);
      std::vector<uint8_t> moment2(kCount);
      std::vector<uint16_t> scale1(kCount / 32), scale2(kCount / 32);
      adamw({.master = master.data(),
             .grad = grad.data(),
             .states = StateKind::k8Bit,
             .moment1 = moment1.data(),
             .moment2 = moment2.data(),
             .scale1 = scale1.data(),
             .scale2 = scale2.data(),
             .seed = 11,
             .count = kCount,
             .lr = 0,
             .beta1 = 0});
      double mean = 0, count = 0;
      for (size_t i = 0; i < moment1.size(); ++i) {
        if (i % 32 == 0) {
          ASSERT_EQ(moment1[i], -127);
        } else {
          mean += moment1[i];
          ++count;
        }
      }
      // A rounding has a variance of at most 1 / 4, a mean of independent ones lies within 6 deviations; FP32 as above.
      const double y = -254 * double{x} / (1 + double{x});
      EXPECT_NEAR(mean / count, y, x == 0 ? 0 : 6 * 0.5 / std::sqrt(count) + 3 * 0x1p-16) << x;
    }
  }
}

// A split weight whose BF16 part somebody else has written may have a correction that belongs to another.
TEST(NarrowStates, ACorrectionOfAnotherWeightMovesItByHalfAnUlpAtMost) {
  for (Isa isa : isas()) {
    const runtime::ScopedIsa scope(isa);
    for (uint32_t upper = 0; upper < 0x10000; upper += 64) {
      std::vector<uint16_t> narrow;
      std::vector<int8_t> correction;
      for (uint32_t i = 0; i < 64; ++i) {
        narrow.push_back(static_cast<uint16_t>(upper + i));
        correction.push_back(i % 3 == 0 ? int8_t{-127} : i % 3 == 1 ? int8_t{127} : int8_t{5});
      }
      const std::vector<uint16_t> before = narrow;
      std::vector<float> zeros(64), moment1(64), moment2(64);
      adamw({.narrow = narrow.data(),
             .correction = correction.data(),
             .grad = zeros.data(),
             .moment1 = moment1.data(),
             .moment2 = moment2.data(),
             .count = 64,
             .lr = 0});
      for (size_t i = 0; i < 64; ++i) {
        const float then = Bf16::decode(before[i]), now = Bf16::decode(narrow[i]);
        if (std::isnan(then)) {
          EXPECT_TRUE(std::isnan(now));
        } else {
          EXPECT_LE(std::abs(int{narrow[i]} - int{before[i]}), 1) << before[i];
          EXPECT_EQ(std::signbit(now), std::signbit(then));
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
