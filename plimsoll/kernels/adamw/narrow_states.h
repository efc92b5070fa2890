// AdamW's moments and weights in fewer bits, 64 elements in four vectors. Rules: adamw.h. Internal linkage, as in
// simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

using F32x64 = F32x16[4];
using I32x64 = I32x16[4];

constexpr int32_t kSignBit = INT32_MIN, kMagnitudeBits = 0x7fffffff, kUpperHalf = INT32_C(-0x10000);

// The random half of a word that rounds an element.
enum class Half { kUpper, kLower };

// The 16 bits as a number.
template <Half kHalf>
PLIMSOLL_INLINE I32x16 random_bits(I32x16 word) {
  return kHalf == Half::kUpper ? shift_right<16>(word) : and_i(word, set_i(0xffff));
}

// format::Bf16::encode_stochastic: up in magnitude if random < the 16 bits that are cut off. NaN aside, which goes the
// long way, an element takes two instructions and a half.
template <Half kHalf>
PLIMSOLL_INLINE void store_bf16_stochastic(void* data, int64_t i, const F32x64& x, const I32x64& words) {
  auto* const p = static_cast<uint16_t*>(data) + i;
  I32x64 raised;
  for (int j = 0; j < 4; ++j) raised[j] = add_i(bits(x[j]), random_bits<kHalf>(xor_i(words[j], set_i(-1))));
  const F32x16 sum = add(add(x[0], x[1]), add(x[2], x[3]));
  if (__builtin_expect(all(equal(sum, sum)), 1)) {
    store_upper_32(p, raised[0], raised[1]);
    store_upper_32(p + 32, raised[2], raised[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    const F32x16 rounded = from_bits(and_i(raised[j], set_i(kUpperHalf)));
    store_bf16(p + 16 * j, select(equal(x[j], x[j]), rounded, x[j]));
  }
}

PLIMSOLL_INLINE I32x16 load_i8(const int8_t* p) {
  const I32x16 sign = set_i(0x80);
  return sub_i(xor_i(load_u8(reinterpret_cast<const uint8_t*>(p)), sign), sign);
}
PLIMSOLL_INLINE void store_i8(int8_t* p, I32x16 x) { store_u8(reinterpret_cast<uint8_t*>(p), x); }

// x or -x, as `sign` is 0 or -1.
PLIMSOLL_INLINE I32x16 with_sign(I32x16 x, I32x16 sign) { return sub_i(xor_i(x, sign), sign); }

// A split weight as integers: the patterns of an FP32 number's magnitude and of its BF16 part's differ by
// correction * unit / 127, where unit, half an ulp of BF16, is 2^15; below a power of two, where the patterns of FP32 lie
// twice as close, it is 2^16. Subnormal ones lie no closer. step: that difference, or another of its sign.
PLIMSOLL_INLINE Mask16 is_below_power_of_two(I32x16 narrow, I32x16 step) {
  const I32x16 has_no_mantissa = sub_i(and_i(narrow, set_i(0x7fffff)), set_i(1));  // negative where that is so
  const I32x16 is_normal = sub_i(set_i(0x800000), narrow);                         // negative above the least normal
  return less_i(and_i(and_i(has_no_mantissa, is_normal), step), set_i(0));
}

// The correction of what is not finite is 0.
PLIMSOLL_INLINE I32x16 or_zero(I32x16 narrow, I32x16 correction) {
  return select_i(less_i(narrow, set_i(0x7f800000)), correction, set_i(0));
}

PLIMSOLL_INLINE F32x16 load_split(const uint16_t* narrow, const int8_t* correction) {
  const I32x16 word = bits(load_bf16(narrow)), magnitude = and_i(word, set_i(kMagnitudeBits));
  const I32x16 sign = sub_i(set_i(0), shift_right<31>(word));
  const I32x16 code = or_zero(magnitude, with_sign(load_i8(correction), sign));
  const F32x16 unit = select(is_below_power_of_two(magnitude, code), set(0x1p16f / 127), set(0x1p15f / 127));
  const I32x16 step = to_int(round_even(mul(to_float(code), unit)));
  // A correction of another weight could lead below zero.
  return from_bits(or_i(max_i(add_i(magnitude, step), set_i(0)), and_i(word, set_i(kSignBit))));
}

PLIMSOLL_INLINE void store_split(uint16_t* narrow, int8_t* correction, F32x16 x) {
  store_bf16(narrow, x);
  const I32x16 word = bits(load_bf16(narrow)), magnitude = and_i(word, set_i(kMagnitudeBits));
  const I32x16 step = sub_i(and_i(bits(x), set_i(kMagnitudeBits)), magnitude);
  const F32x16 inv_unit = select(is_below_power_of_two(magnitude, step), set(127 / 0x1p16f), set(127 / 0x1p15f));
  const I32x16 code = to_int(round_even(mul(to_float(step), inv_unit)));
  store_i8(correction, or_zero(magnitude, with_sign(code, sub_i(set_i(0), shift_right<31>(word)))));
}

// Groups of 64 elements in 8 bits that are updated together: their scales fill a vector, and what one group waits for,
// another computes meanwhile.
constexpr int64_t kBlockGroups = 8, kBlockScales = 64 / kStateGroup * kBlockGroups;

// 8-bit states of a block between their update and their packing.
struct alignas(64) Block {
  float moment1[64 * kBlockGroups], root2[64 * kBlockGroups];
  int32_t words[64 * kBlockGroups];
  // Scales of each 32 elements: first those that were, then the amaxes and the scales that will be.
  float scale1[16], scale2[16];
  int32_t amax1[16] = {}, amax2[16] = {};
};
static_assert(kBlockScales == 16);

PLIMSOLL_INLINE int32_t amax_of_32(F32x16 a, F32x16 b) { return reduce_max_i(amax_of(amax_of(set_i(0), a), b)); }

// The least FP16 numbers that are not below these amaxes; NaN where one is not finite.
PLIMSOLL_INLINE F32x16 round_up_to_fp16(F32x16 amax) {
  const I32x16 tail = set_i(0x1fff);
  const F32x16 normal = from_bits(and_i(add_i(bits(amax), tail), xor_i(tail, set_i(-1))));
  const F32x16 nearest = sub(add(amax, set(0.5f)), set(0.5f));  // FP16's subnormal grid, 2^-24
  const F32x16 tiny = select(less(nearest, amax), add(nearest, set(0x1p-24f)), nearest);
  const F32x16 scale = min(select(less(amax, set(0x1p-14f)), tiny, normal), set(65504.0f));
  return select(less(amax, from_bits(set_i(0x7f800000))), scale, from_bits(set_i(0x7fc00000)));
}

// Writes the first `count` of 16 scales for these amaxes, and leaves their reciprocals; of 0 or NaN that is 0.
PLIMSOLL_INLINE void choose_scales(const int32_t (&amax)[16], int64_t count, uint16_t* scale, float (&inv_scale)[16]) {
  float values[16];
  __builtin_memcpy(values, amax, sizeof(values));
  const F32x16 chosen = round_up_to_fp16(load(values));
  store_fp16_n(scale, chosen, count);
  store(inv_scale, select(less(zero(), chosen), div(set(1), chosen), zero()));
}

// m / scale of codes: y / (2 - |y|) with y = code / 127.
PLIMSOLL_INLINE F32x16 expand_moment1(I32x16 code) {
  const F32x16 x = to_float(code);
  return div(x, sub(set(254), abs(x)));
}

// The codes of m * inv_scale, which is at most 1 in magnitude but for its rounding; NaN becomes 1.
PLIMSOLL_INLINE I32x16 compress_moment1(F32x16 m, F32x16 inv_scale, I32x16 word) {
  const F32x16 x = min(mul(abs(m), inv_scale), set(1));
  const F32x16 y = div(mul(set(254), x), add(set(1), x));
  const F32x16 random = mul(to_float(random_bits<Half::kUpper>(word)), set(0x1p-16f));
  return with_sign(to_int(add(y, random)), sub_i(set_i(0), shift_right<31>(bits(m))));
}

// The codes of root * inv_scale: the code c above with probability (x^2 - c^2) / ((c + 1)^2 - c^2), where x is the
// root in units of codes.
PLIMSOLL_INLINE I32x16 compress_root2(F32x16 root, F32x16 inv_scale, I32x16 word) {
  const F32x16 x = min(mul(mul(root, inv_scale), set(255)), set(255));
  const I32x16 below = to_int(x);
  const F32x16 c = to_float(below), random = mul(to_float(random_bits<Half::kLower>(word)), set(0x1p-16f));
  const Mask16 goes_up = less(mul(random, fma(set(2), c, set(1))), mul(sub(x, c), add(x, c)));
  const I32x16 code = select_i(goes_up, add_i(below, set_i(1)), below);
  return max_i(code, select_i(less(zero(), x), set_i(1), set_i(0)));
}

// Moments of the 64 elements from i on, whose first scale is `scale` of the block.
PLIMSOLL_INLINE void load_8bit(const AdamW& args, int64_t i, const Block& block, int64_t scale, F32x64& moment1,
                               F32x64& moment2) {
  const int8_t* const codes1 = static_cast<const int8_t*>(args.moment1) + i;
  const uint8_t* const codes2 = static_cast<const uint8_t*>(args.moment2) + i;
  for (int j = 0; j < 4; ++j) {
    moment1[j] = mul(expand_moment1(load_i8(codes1 + 16 * j)), set(block.scale1[scale + j / 2]));
    const F32x16 root = mul(mul(to_float(load_u8(codes2 + 16 * j)), set(1 / 255.0f)), set(block.scale2[scale + j / 2]));
    moment2[j] = mul(root, root);
  }
}

// Leaves them in the block, at element `at`, until all its scales are known.
PLIMSOLL_INLINE void keep_8bit(Block& block, int64_t at, const F32x64& moment1, const F32x64& root2,
                               const I32x64& words) {
  for (int j = 0; j < 4; ++j) {
    store(block.moment1 + at + 16 * j, moment1[j]);
    store(block.root2 + at + 16 * j, root2[j]);
    store(reinterpret_cast<float*>(block.words) + at + 16 * j, from_bits(words[j]));
  }
  for (int half = 0; half < 2; ++half) {
    block.amax1[at / kStateGroup + half] = amax_of_32(moment1[2 * half], moment1[2 * half + 1]);
    block.amax2[at / kStateGroup + half] = amax_of_32(root2[2 * half], root2[2 * half + 1]);
  }
}

// Packs the first `groups` groups of the block, elements from i on.
PLIMSOLL_INLINE void store_8bit(const AdamW& args, int64_t i, int64_t groups, Block& block) {
  int8_t* const codes1 = static_cast<int8_t*>(args.moment1) + i;
  uint8_t* const codes2 = static_cast<uint8_t*>(args.moment2) + i;
  const int64_t scales = groups * 64 / kStateGroup, first = i / kStateGroup;
  choose_scales(block.amax1, scales, args.scale1 + first, block.scale1);
  choose_scales(block.amax2, scales, args.scale2 + first, block.scale2);
  for (int64_t at = 0; at < 64 * groups; at += 16) {
    const I32x16 words = bits(load(reinterpret_cast<const float*>(block.words) + at));
    const F32x16 inv_scale1 = set(block.scale1[at / kStateGroup]), inv_scale2 = set(block.scale2[at / kStateGroup]);
    store_i8(codes1 + at, compress_moment1(load(block.moment1 + at), inv_scale1, words));
    store_u8(codes2 + at, compress_root2(load(block.root2 + at), inv_scale2, words));
  }
}

}  // namespace
}  // namespace plimsoll::kernels
