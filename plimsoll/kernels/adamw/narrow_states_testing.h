// AdamW's narrow states and weights a second time, by scalar code after the rules in adamw.h, and a tensor that has them
// all. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/testing.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels::testing {

using format::Bf16;
using format::Fp16;

enum class Weights { kMaster, kSplit, kAlone };

inline constexpr int64_t kSizes[] = {0, 1, 31, 32, 33, 63, 64, 65, 1000, 4097};
inline constexpr uint64_t kSeed = 77;
inline constexpr int64_t kStep = 5;

// The rules, one element at a time.

inline float joined(uint16_t narrow, int8_t correction) {
  const double w16 = double{Bf16::decode(narrow)};
  const int exponent = std::max((narrow >> 7) & 0xff, 1);
  const double half_ulp = std::ldexp(1.0, exponent - 127 - 8);
  return correction == 0 ? Bf16::decode(narrow) : static_cast<float>(w16 + correction / 127.0 * half_ulp);
}

inline int8_t correction_of(float w, uint16_t narrow) {
  const double w16 = double{Bf16::decode(narrow)};
  if (!std::isfinite(w16)) return 0;
  const double half_ulp = std::ldexp(1.0, std::max((narrow >> 7) & 0xff, 1) - 127 - 8);
  return static_cast<int8_t>(std::nearbyint(127 * std::clamp((double{w} - w16) / half_ulp, -1.0, 1.0)));
}

inline float expanded1(int8_t code, float scale) {
  const auto x = static_cast<float>(code);
  return x / (254 - std::fabs(x)) * scale;
}

inline float expanded2(uint8_t code, float scale) {
  const float root = static_cast<float>(code) * (scale * (1 / 255.0f));
  return root * root;
}

// The least FP16 number that is not below, by trying all.
inline uint16_t scale_above(float amax) {
  if (!std::isfinite(amax)) return 0x7e00;
  uint16_t code = 0;
  while (code < 0x7bff && Fp16::decode(code) < amax) ++code;
  return code;
}

// y = 254 x / (1 + x) and the upper half of the word, in units of 2^-16, down to a whole number. FP32 is off by 3 units at
// most: a constant, 1 + x, the reciprocal and the product each round by 127 * 2^-8, half a unit, and so does the whole
// number; what the reciprocal itself is off by is less.
inline void expect_code1(int8_t code, float m, float scale, uint32_t word) {
  const float inv_scale = scale > 0 ? 1 / scale : 0.0f;
  const float given = std::fabs(m) * inv_scale, x = given < 1 ? given : 1.0f;
  const double y = std::copysign(65536 * 254 * double{x} / (1 + double{x}), double{m}), random = word >> 16;
  const double off = x == 0 || x == 1 ? 0 : 3;
  ASSERT_GE(code, -127);
  ASSERT_LE(code, std::floor((y + off + random) / 65536));
  ASSERT_GE(code, std::floor((y - off + random) / 65536));
}

inline uint8_t code2(float root, float scale, uint32_t word) {
  const float inv_scale = scale > 0 ? 1 / scale : 0.0f;
  const float x = root * (inv_scale * 255), above = std::ceil(x), square = std::max(x * x, 1.0f);
  const float step = (2 * above - 1) * 0x1p-16f;
  const bool goes_down = square < std::fma(-static_cast<float>(word & 0xffff), step, above * above);
  return static_cast<uint8_t>(std::min(above - (goes_down ? 1.0f : 0.0f), 255.0f));
}

// Normal values with zeros, subnormals, large ones, and groups of nothing else but zeros or subnormals.
inline std::vector<float> values(int64_t count, uint32_t seed, double deviation) {
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

inline constexpr Weights kWeights[] = {Weights::kMaster, Weights::kSplit, Weights::kAlone};
inline constexpr StateKind kStates[] = {StateKind::kFp32, StateKind::kBf16, StateKind::k8Bit};

inline uint32_t word_of(size_t i) { return runtime::RoundingWords{.seed = kSeed, .step = kStep}.word(i); }

inline void expect_8bit_states(const Tensor& got, const Tensor& wide) {
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

}  // namespace plimsoll::kernels::testing
