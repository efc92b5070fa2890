// The loop, once for every ISA file.
#pragma once

#include "plimsoll/kernels/adamw/adamw_range.h"
#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/philox.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

template <Format kFormat>
PLIMSOLL_INLINE F32x16 load_as(const void* data, int64_t i, int64_t n) {
  if constexpr (kFormat == Format::kFp32) {
    const float* p = static_cast<const float*>(data) + i;
    return n == 16 ? load(p) : load_n(p, n);
  } else {
    const uint16_t* p = static_cast<const uint16_t*>(data) + i;
    if constexpr (kFormat == Format::kBf16) return n == 16 ? load_bf16(p) : load_bf16_n(p, n);
    return n == 16 ? load_fp16(p) : load_fp16_n(p, n);
  }
}

PLIMSOLL_INLINE void store_fp32(float* data, int64_t i, int64_t n, F32x16 x) {
  n == 16 ? store(data + i, x) : store_n(data + i, x, n);
}
PLIMSOLL_INLINE void store_bf16_at(void* data, int64_t i, int64_t n, F32x16 x) {
  uint16_t* p = static_cast<uint16_t*>(data) + i;
  n == 16 ? store_bf16(p, x) : store_bf16_n(p, x, n);
}
PLIMSOLL_INLINE void store_fp16_at(void* data, int64_t i, int64_t n, F32x16 x) {
  uint16_t* p = static_cast<uint16_t*>(data) + i;
  n == 16 ? store_fp16(p, x) : store_fp16_n(p, x, n);
}

// format::Bf16::encode_stochastic with the upper 16 bits of each word: up in magnitude if random < the 16 bits that are
// cut off.
PLIMSOLL_INLINE F32x16 round_bf16_stochastic(F32x16 x, I32x16 word) {
  const I32x16 above = sub_i(set_i(0xffff), shift_right<16>(word));
  const I32x16 rounded = and_i(add_i(bits(x), above), set_i(static_cast<int32_t>(0xffff0000u)));
  return select(equal(x, x), from_bits(rounded), x);
}

template <Format kFormat>
PLIMSOLL_INLINE void store_moment(void* data, int64_t i, int64_t n, F32x16 x, I32x16 word) {
  if constexpr (kFormat == Format::kFp32) {
    store_fp32(static_cast<float*>(data), i, n, x);
  } else {
    store_bf16_at(data, i, n, round_bf16_stochastic(x, word));
  }
}

// 32 BF16 moments. `above`: what is added to the words before their lower halves are cut off.
PLIMSOLL_INLINE void store_moments(void* data, int64_t i, F32x16 x0, F32x16 x1, I32x16 above0, I32x16 above1) {
  store_upper_32(static_cast<uint16_t*>(data) + i, add_i(bits(x0), above0), add_i(bits(x1), above1));
}

PLIMSOLL_INLINE void store_outputs(const AdamW& args, int64_t i, int64_t n, F32x16 w) {
  if (args.narrow) {
    args.narrow_format == Format::kBf16 ? store_bf16_at(args.narrow, i, n, w) : store_fp16_at(args.narrow, i, n, w);
  }
}

struct Updated {
  F32x16 weight, moment1, moment2;
};

// Elements i .. i + n - 1, n <= 16.
template <Format kGrad, Format kMoment>
PLIMSOLL_INLINE Updated update(const AdamW& args, const AdamWCoefficients& c, int64_t i, int64_t n) {
  const F32x16 w = load_as<Format::kFp32>(args.master, i, n);
  F32x16 g = mul(load_as<kGrad>(args.grad, i, n), set(c.grad_scale));
  if (c.l2 != 0) g = fma(set(c.l2), w, g);
  const F32x16 m = fma(set(c.beta1), load_as<kMoment>(args.moment1, i, n), mul(set(c.one_minus_beta1), g));
  const F32x16 v = fma(set(c.beta2), load_as<kMoment>(args.moment2, i, n), mul(mul(set(c.one_minus_beta2), g), g));
  const F32x16 denominator = fma(sqrt(v), set(c.inv_sqrt_correction2), set(c.eps));
  const F32x16 decayed = mul(w, set(c.decay));
  return {fnma(set(c.step_size), div(m, denominator), decayed), m, v};
}

template <Format kGrad, Format kMoment>
PLIMSOLL_INLINE I32x16 update_and_store(const AdamW& args, const AdamWCoefficients& c, int64_t i, int64_t n,
                                        I32x16 word, I32x16 amax) {
  const Updated x = update<kGrad, kMoment>(args, c, i, n);
  store_fp32(args.master, i, n, x.weight);
  store_moment<kMoment>(args.moment1, i, n, x.moment1, word);
  store_moment<kMoment>(args.moment2, i, n, x.moment2, shift_left<16>(word));
  store_outputs(args, i, n, x.weight);
  return amax_of(amax, n == 16 ? x.weight : keep_n(x.weight, n));
}

// The same with BF16 moments on 32 elements: NaN aside, which goes the long way, a moment is rounded with two
// instructions and a half.
template <Format kGrad>
PLIMSOLL_INLINE I32x16 update_32(const AdamW& args, const AdamWCoefficients& c, int64_t i, const I32x16* words,
                                 I32x16 amax) {
  const Updated x0 = update<kGrad, Format::kBf16>(args, c, i, 16);
  const Updated x1 = update<kGrad, Format::kBf16>(args, c, i + 16, 16);
  const F32x16 sum = add(add(x0.moment1, x0.moment2), add(x1.moment1, x1.moment2));
  const Mask16 ordered = equal(sum, sum);
  store(args.master + i, x0.weight);
  store(args.master + i + 16, x1.weight);
  if (__builtin_expect(all(ordered), 1)) {
    const I32x16 rest0 = xor_i(words[0], set_i(-1)), rest1 = xor_i(words[1], set_i(-1)), low = set_i(0xffff);
    store_moments(args.moment1, i, x0.moment1, x1.moment1, shift_right<16>(rest0), shift_right<16>(rest1));
    store_moments(args.moment2, i, x0.moment2, x1.moment2, and_i(rest0, low), and_i(rest1, low));
  } else {
    store_moment<Format::kBf16>(args.moment1, i, 16, x0.moment1, words[0]);
    store_moment<Format::kBf16>(args.moment1, i + 16, 16, x1.moment1, words[1]);
    store_moment<Format::kBf16>(args.moment2, i, 16, x0.moment2, shift_left<16>(words[0]));
    store_moment<Format::kBf16>(args.moment2, i + 16, 16, x1.moment2, shift_left<16>(words[1]));
  }
  store_outputs(args, i, 16, x0.weight);
  store_outputs(args, i + 16, 16, x1.weight);
  return amax_of(amax_of(amax, x0.weight), x1.weight);
}

// Four streams at once, on pages of their own: the hardware alone starts anew on each.
template <Format kGrad, Format kMoment>
PLIMSOLL_INLINE void prefetch_group(const AdamW& args, int64_t i) {
  constexpr int64_t kGradBytes = kGrad == Format::kFp32 ? 4 : 2, kMomentBytes = kMoment == Format::kFp32 ? 4 : 2;
  auto ask = [](const void* data, int64_t begin, int64_t bytes) __attribute__((always_inline)) {
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(static_cast<const char*>(data) + begin + byte);
  };
  ask(args.grad, i * kGradBytes, kAdamWGroup * kGradBytes);
  ask(args.master, i * 4, kAdamWGroup * 4);
  ask(args.moment1, i * kMomentBytes, kAdamWGroup * kMomentBytes);
  ask(args.moment2, i * kMomentBytes, kAdamWGroup * kMomentBytes);
}

template <Format kGrad, Format kMoment>
int32_t run(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 4 * kAdamWGroup;
  const PhiloxKeys keys(args.seed);
  I32x16 amax = set_i(0);
  for (int64_t group = begin; group < end; group += kAdamWGroup) {
    I32x16 words[4] = {set_i(0), set_i(0), set_i(0), set_i(0)};
    prefetch_group<kGrad, kMoment>(args, group + kAhead);
    if constexpr (kMoment == Format::kBf16) {
      philox_64_words(keys, static_cast<uint64_t>(args.step), static_cast<uint64_t>(group / 4), words);
      if (group + kAdamWGroup <= end) {
        amax = update_32<kGrad>(args, c, group, words, amax);
        amax = update_32<kGrad>(args, c, group + 32, words + 2, amax);
        continue;
      }
    }
    for (int j = 0; j < 4; ++j) {
      const int64_t i = group + 16 * j, n = end - i < 16 ? end - i : 16;
      if (n <= 0) break;
      amax = update_and_store<kGrad, kMoment>(args, c, i, n, words[j], amax);
    }
  }
  return reduce_max_i(amax);
}

template <Format kGrad>
PLIMSOLL_INLINE int32_t run_moment(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end) {
  return args.moment_format == Format::kFp32 ? run<kGrad, Format::kFp32>(args, c, begin, end)
                                             : run<kGrad, Format::kBf16>(args, c, begin, end);
}

PLIMSOLL_INLINE int32_t run_any(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end) {
  if (args.grad_format == Format::kFp32) return run_moment<Format::kFp32>(args, c, begin, end);
  if (args.grad_format == Format::kBf16) return run_moment<Format::kBf16>(args, c, begin, end);
  return run_moment<Format::kFp16>(args, c, begin, end);
}

}  // namespace
}  // namespace plimsoll::kernels
