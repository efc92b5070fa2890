// AdamW's moments and weights in fewer bits, 32 elements in two vectors. Rules: adamw.h. Internal linkage, as in
// simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/reduce_max_16.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

using F32x32 = F32x16[2];
using I32x32 = I32x16[2];

constexpr int32_t kUpperHalf = INT32_C(-0x10000), kInfBits = 0x7f800000;

// The half of an element's random word that rounds it.
enum class Half { kUpper, kLower };

// The 16 bits as a number.
template <Half kHalf>
PLIMSOLL_INLINE I32x16 random_bits(I32x16 word) {
  return kHalf == Half::kUpper ? shift_right<16>(word) : and_i(word, set_i(0xffff));
}

// Up in magnitude if the 16 bits that are cut off and the random ones carry. NaN goes the long way.
template <Half kHalf>
PLIMSOLL_INLINE void store_bf16_stochastic(uint16_t* p, const F32x32& x, const I32x32& words) {
  I32x32 raised;
  for (int j = 0; j < 2; ++j) raised[j] = add_i(bits(x[j]), random_bits<kHalf>(words[j]));
  const F32x16 sum = add(x[0], x[1]);
  if (__builtin_expect(all(equal(sum, sum)), 1)) return store_upper_32(p, raised[0], raised[1]);
  for (int j = 0; j < 2; ++j) {
    const F32x16 rounded = from_bits(and_i(raised[j], set_i(kUpperHalf)));
    store_bf16(p + 16 * j, select(equal(x[j], x[j]), rounded, x[j]));
  }
}

// Bits of the power of two that a magnitude has as its exponent; at least that of the least normal number.
PLIMSOLL_INLINE I32x16 exponent_of(F32x16 x) { return max_i(and_i(bits(x), set_i(kInfBits)), set_i(0x00800000)); }

// FP32 rounds correction / 127 and the sum; for every BF16 number and every correction that is the nearest to the exact
// sum (narrow_states_test.cpp). A correction of another weight could lead below zero: the sign is the weight's.
PLIMSOLL_INLINE F32x16 load_split(const uint16_t* narrow, const int8_t* correction) {
  const F32x16 w = load_bf16(narrow);
  const F32x16 half_ulp = mul(from_bits(min_i(exponent_of(w), set_i(0x7f000000))), set(0x1p-8f));  // of Inf: finite
  return copy_sign(fma(mul(to_float(load_i8(correction)), set(1 / 127.0f)), half_ulp, w), w);
}

// The correction that leads from w, finite, to x: exact but for the last rounding.
PLIMSOLL_INLINE I32x16 correction_to(F32x16 x, F32x16 w) {
  // 1 / half_ulp is 2^7 times this.
  const F32x16 inverse = from_bits(sub_i(set_i(kInfBits), exponent_of(w)));
  return nearest_int(mul(mul(sub(x, w), set(127 * 0x1p7f)), inverse));
}

// largest: bits of the largest magnitudes.
PLIMSOLL_INLINE void store_split(uint16_t* narrow, int8_t* correction, const F32x32& x, I32x16 largest) {
  constexpr int32_t kRoundsToInf = 0x7f7f8000;  // the least magnitude that does
  I32x32 code;
  if (__builtin_expect(all(less_i(largest, set_i(kRoundsToInf))), 1)) {
    I32x32 rounded;
    for (int j = 0; j < 2; ++j) {
      const I32x16 word = bits(x[j]), odd = and_i(shift_right<16>(word), set_i(1));
      rounded[j] = and_i(add_i(word, add_i(odd, set_i(0x7fff))), set_i(kUpperHalf));
      code[j] = correction_to(x[j], from_bits(rounded[j]));
    }
    store_upper_32(narrow, rounded[0], rounded[1]);
  } else {
    for (int j = 0; j < 2; ++j) {
      store_bf16(narrow + 16 * j, x[j]);
      const F32x16 w = load_bf16(narrow + 16 * j);
      const Mask16 is_finite = less(abs(w), from_bits(set_i(kInfBits)));
      code[j] = correction_to(select(is_finite, x[j], zero()), select(is_finite, w, zero()));
    }
  }
  store_i8_32(correction, code[0], code[1]);
}

// Groups of 32 elements in 8 bits that are updated together: their scales fill a vector.
constexpr int64_t kBlockScales = 16, kBlock = kBlockScales * kStateGroup;

// 8-bit states of a block between their update and their packing.
struct alignas(64) Block {
  float moment1[kBlock], root2[kBlock];
  int32_t words[kBlock];
  // Lane-wise maxima of the magnitudes of each group.
  int32_t largest1[kBlockScales][16], largest2[kBlockScales][16];
  // Values of a unit of each group's codes; from choose_scales on their reciprocals.
  float unit1[kBlockScales], unit2[kBlockScales];
};

PLIMSOLL_INLINE I32x16 load_words(const int32_t* p) { return bits(load(reinterpret_cast<const float*>(p))); }
PLIMSOLL_INLINE void store_words(int32_t* p, I32x16 x) { store(reinterpret_cast<float*>(p), from_bits(x)); }

// The least FP16 numbers that are not below these amaxes; NaN where one is not finite.
PLIMSOLL_INLINE F32x16 round_up_to_fp16(F32x16 amax) {
  const I32x16 tail = set_i(0x1fff);
  const F32x16 normal = from_bits(and_i(add_i(bits(amax), tail), xor_i(tail, set_i(-1))));
  const F32x16 nearest = sub(add(amax, set(0.5f)), set(0.5f));  // FP16's subnormal grid, 2^-24
  const F32x16 tiny = select(less(nearest, amax), add(nearest, set(0x1p-24f)), nearest);
  const F32x16 scale = min(select(less(amax, set(0x1p-14f)), tiny, normal), set(65504.0f));
  return select(less(amax, from_bits(set_i(kInfBits))), scale, from_bits(set_i(0x7fc00000)));
}

// Writes the first `count` of 16 scales for these maxima, and returns their reciprocals; of 0 or NaN that is 0.
PLIMSOLL_INLINE F32x16 choose_scales(const int32_t (&largest)[kBlockScales][16], int64_t count, uint16_t* scale) {
  I32x16 lanes[kBlockScales];
  for (int i = 0; i < kBlockScales; ++i) lanes[i] = load_words(largest[i]);
  const F32x16 chosen = round_up_to_fp16(from_bits(reduce_max_16(lanes)));
  store_fp16_n(scale, chosen, count);
  return select(less(zero(), chosen), div(set(1), chosen), zero());
}

// m / scale of codes: y / (2 - |y|) with y = code / 127.
PLIMSOLL_INLINE F32x16 expand_moment1(I32x16 code) {
  const F32x16 x = to_float(code);
  return div(x, sub(set(254), abs(x)));
}

// 1 / x within 1.1 units of 2^-24 for x in [1, 2], exact at both ends. Of a machine's divisions an update has two or
// three others to do. The cubic is 1 / x times 1 - e with the least |e|, 0.0017.
PLIMSOLL_INLINE F32x16 reciprocal_1_2(F32x16 x) {
  F32x16 r = fma(set(-0.22183709f), x, set(1.33102253f));
  r = fma(r, x, set(-2.93934142f));
  r = fma(r, x, set(2.82842288f));
  const F32x16 e = fnma(x, r, set(1));
  return fma(r, fma(e, e, e), r);
}

// The codes of m * inv_scale, which is at most 1 in magnitude but for its rounding; NaN becomes 1. y in units of 2^-16
// and a random number of as many bits: down to a whole number.
PLIMSOLL_INLINE I32x16 compress_moment1(F32x16 m, F32x16 inv_scale, I32x16 word) {
  constexpr float kUnits = 254 * 65536.0f;
  const F32x16 x = min(abs(mul(m, inv_scale)), set(1));
  const F32x16 y = fnma(set(kUnits), reciprocal_1_2(add(set(1), x)), set(kUnits));  // 254 x / (1 + x)
  return shift_right_signed<16>(add_i(nearest_int(copy_sign(y, m)), random_bits<Half::kUpper>(word)));
}

// The codes of root / unit: the code c above with probability (x^2 - c^2) / ((c + 1)^2 - c^2), where x is the root in
// units of codes. An x between 0 and 1 has the code 1.
PLIMSOLL_INLINE I32x16 compress_root2(F32x16 root, F32x16 inv_unit, I32x16 word) {
  const F32x16 given = min(mul(root, inv_unit), set(255));
  const F32x16 x = select(less(zero(), given), max(given, set(1)), zero());
  const I32x16 below = to_int(x);
  const F32x16 c = to_float(below), random = to_float(random_bits<Half::kLower>(word));
  const Mask16 goes_up = less(mul(random, fma(set(0x2p-16f), c, set(0x1p-16f))), mul(sub(x, c), add(x, c)));
  return select_i(goes_up, add_i(below, set_i(1)), below);
}

// Units of the first `count` groups of the block, which begins at element i.
PLIMSOLL_INLINE void load_units(const AdamW& args, int64_t i, int64_t count, Block& block) {
  store(block.unit1, load_fp16_n(args.scale1 + i / kStateGroup, count));
  store(block.unit2, mul(load_fp16_n(args.scale2 + i / kStateGroup, count), set(1 / 255.0f)));
}

// Moments of the 32 elements from i on, group `group` of the block.
PLIMSOLL_INLINE void load_8bit(const AdamW& args, int64_t i, const Block& block, int64_t group, F32x32& moment1,
                               F32x32& moment2) {
  const int8_t* const codes1 = static_cast<const int8_t*>(args.moment1) + i;
  const uint8_t* const codes2 = static_cast<const uint8_t*>(args.moment2) + i;
  const F32x16 unit1 = set(block.unit1[group]), unit2 = set(block.unit2[group]);
  for (int j = 0; j < 2; ++j) {
    moment1[j] = mul(expand_moment1(load_i8(codes1 + 16 * j)), unit1);
    const F32x16 root = mul(to_float(load_u8(codes2 + 16 * j)), unit2);
    moment2[j] = mul(root, root);
  }
}

// Leaves them in the block until all its scales are known.
PLIMSOLL_INLINE void keep_8bit(Block& block, int64_t group, const F32x32& moment1, const F32x32& root2,
                               const I32x32& words) {
  for (int j = 0; j < 2; ++j) {
    const int64_t at = group * kStateGroup + 16 * j;
    store(block.moment1 + at, moment1[j]);
    store(block.root2 + at, root2[j]);
    store_words(block.words + at, words[j]);
  }
  store_words(block.largest1[group], max_i(bits(abs(moment1[0])), bits(abs(moment1[1]))));
  store_words(block.largest2[group], max_i(bits(abs(root2[0])), bits(abs(root2[1]))));
}

// Packs the first `count` groups of the block, elements from i on.
PLIMSOLL_INLINE void store_8bit(const AdamW& args, int64_t i, int64_t count, Block& block) {
  int8_t* const codes1 = static_cast<int8_t*>(args.moment1) + i;
  uint8_t* const codes2 = static_cast<uint8_t*>(args.moment2) + i;
  for (int64_t group = count; group < kBlockScales; ++group) {
    store_words(block.largest1[group], set_i(0));
    store_words(block.largest2[group], set_i(0));
  }
  store(block.unit1, choose_scales(block.largest1, count, args.scale1 + i / kStateGroup));
  store(block.unit2, mul(choose_scales(block.largest2, count, args.scale2 + i / kStateGroup), set(255)));
  for (int64_t group = 0; group < count; ++group) {
    const F32x16 inv_scale1 = set(block.unit1[group]), inv_unit2 = set(block.unit2[group]);
    I32x32 code1, code2;
    for (int j = 0; j < 2; ++j) {
      const int64_t at = group * kStateGroup + 16 * j;
      const I32x16 words = load_words(block.words + at);
      code1[j] = compress_moment1(load(block.moment1 + at), inv_scale1, words);
      code2[j] = compress_root2(load(block.root2 + at), inv_unit2, words);
    }
    store_i8_32(codes1 + group * kStateGroup, code1[0], code1[1]);
    store_u8_32(codes2 + group * kStateGroup, code2[0], code2[1]);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
