// AdamW's moments in 8 bits, kVectors vectors together. Rules: adamw.h. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/expand_moment1.h"
#include "plimsoll/kernels/adamw/narrow_weights.h"
#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/codes.h"
#include "plimsoll/kernels/simd/reduce_max_16.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Groups of 32 elements in 8 bits that are updated one after the other: their scales fill a vector.
constexpr int64_t kBlockScales = 16, kBlock = kBlockScales * kStateGroup;
constexpr float kLargestScale = 65504;

// Values that an update of a block keeps between its two passes.
struct alignas(64) Block {
  float moment1[kBlock], root2[kBlock], moment2[kBlock];
  // Lane-wise maxima of the magnitudes of each group with 8-bit states, and values of a unit of its codes, from
  // choose_scales on their reciprocals.
  int32_t largest1[kBlockScales][16], largest2[kBlockScales][16];
  float unit1[kBlockScales], unit2[kBlockScales];
  bool has_larger;  // magnitudes above kLargestScale, or NaN
};

PLIMSOLL_INLINE I32x16 load_words(const int32_t* p) { return bits(load(reinterpret_cast<const float*>(p))); }
PLIMSOLL_INLINE void store_words(int32_t* p, I32x16 x) { store(reinterpret_cast<float*>(p), from_bits(x)); }

// The least FP16 numbers that are not below these amaxes; NaN where one is not finite.
PLIMSOLL_INLINE F32x16 round_up_to_fp16(F32x16 amax) {
  const I32x16 tail = set_i(0x1fff);
  const F32x16 normal = from_bits(and_i(add_i(bits(amax), tail), xor_i(tail, set_i(-1))));
  const F32x16 nearest = sub(add(amax, set(0.5f)), set(0.5f));  // FP16's subnormal grid, 2^-24
  const F32x16 tiny = select(less(nearest, amax), add(nearest, set(0x1p-24f)), nearest);
  const F32x16 scale = min(select(less(amax, set(0x1p-14f)), tiny, normal), set(kLargestScale));
  return select(less(amax, from_bits(set_i(kInfBits))), scale, from_bits(set_i(0x7fc00000)));
}

// The codes of x = m * inv_scale, at most 1 in magnitude: y = 254 x / (1 + |x|) and a random number, both in units of
// 2^-16, down to a whole number. y is within 3 units, and exact where x is 0 or 1. r is 254 / (1 + |x|) in these units,
// first a cubic in |x| that is this quotient times 1 - e with the least |e|, 0.0017: a division would wait for the divider.
PLIMSOLL_INLINE void compress_moment1(const F32s& m, const F32s& inv_scale, const I32s& words, int8_t* codes) {
  constexpr float kUnits = 254 * 65536.0f;
  F32s x, a, r, e;
  I32s code;
  for (int j = 0; j < kVectors; ++j) x[j] = mul(m[j], inv_scale[j]);
  for (int j = 0; j < kVectors; ++j) a[j] = abs(x[j]);
  for (int j = 0; j < kVectors; ++j) r[j] = fma(set(-0.22183709f * kUnits), a[j], set(0.66551126f * kUnits));
  for (int j = 0; j < kVectors; ++j) r[j] = fma(r[j], a[j], set(-0.94280763f * kUnits));
  for (int j = 0; j < kVectors; ++j) r[j] = fma(r[j], a[j], set(0.9982669f * kUnits));
  for (int j = 0; j < kVectors; ++j) e[j] = fnma(fma(a[j], set(1 / kUnits), set(1 / kUnits)), r[j], set(1));
  for (int j = 0; j < kVectors; ++j) r[j] = fma(r[j], fma(e[j], e[j], e[j]), r[j]);
  for (int j = 0; j < kVectors; ++j) code[j] = nearest_int(mul(x[j], r[j]));
  for (int j = 0; j < kVectors; ++j) code[j] = add_i(code[j], random_bits<Half::kUpper>(words[j]));
  store_upper_i8(codes, code);
}

// The codes of x = root * inv_unit: the code c above, or the one below it with probability (c^2 - x^2) / (c^2 - (c - 1)^2).
// An x between 0 and 1 has the code 1.
PLIMSOLL_INLINE void compress_root2(const F32s& root, const F32s& inv_unit, const I32s& words, uint8_t* codes) {
  F32s x, c, random;
  I32s code;
  for (int j = 0; j < kVectors; ++j) x[j] = mul(root[j], inv_unit[j]);
  for (int j = 0; j < kVectors; ++j) random[j] = to_float(random_bits<Half::kLower>(words[j]));
  for (int j = 0; j < kVectors; ++j) c[j] = round_up(x[j]);
  for (int j = 0; j < kVectors; ++j) x[j] = max(mul(x[j], x[j]), set(1));
  for (int j = 0; j < kVectors; ++j) {
    const F32x16 threshold = fnma(random[j], fma(c[j], set(0x2p-16f), set(-0x1p-16f)), mul(c[j], c[j]));
    code[j] = nearest_int(c[j]);
    code[j] = select_i(less(x[j], threshold), add_i(code[j], set_i(-1)), code[j]);
  }
  store_u8(codes, code);
}

// Units of the first `count` groups of the block, which begins at element i.
PLIMSOLL_INLINE void load_units(const AdamW& args, int64_t i, int64_t count, Block& block) {
  store(block.unit1, load_fp16_n(args.scale1 + i / kStateGroup, count));
  store(block.unit2, mul(load_fp16_n(args.scale2 + i / kStateGroup, count), set(1 / 255.0f)));
}

// Units of the elements from `at` on of the block, in all lanes.
PLIMSOLL_INLINE void broadcast_units(const float (&units)[kBlockScales], int64_t at, F32s& x) {
  for (int j = 0; j < kVectors; ++j) x[j] = set(units[(at + 16 * j) / kStateGroup]);
}

// Moments of the elements from i on, which stand from `at` on in the block.
PLIMSOLL_INLINE void load_8bit(const AdamW& args, int64_t i, const Block& block, int64_t at, F32s& moment1,
                               F32s& moment2) {
  const uint8_t* const codes2 = static_cast<const uint8_t*>(args.moment2) + i;
  F32s unit1, unit2;
  broadcast_units(block.unit1, at, unit1);
  broadcast_units(block.unit2, at, unit2);
  expand_moment1(static_cast<const int8_t*>(args.moment1) + i, moment1);
  for (int j = 0; j < kVectors; ++j) moment1[j] = mul(moment1[j], unit1[j]);
  for (int j = 0; j < kVectors; ++j) moment2[j] = mul(to_float(load_u8(codes2 + 16 * j)), unit2[j]);
  for (int j = 0; j < kVectors; ++j) moment2[j] = mul(moment2[j], moment2[j]);
}

PLIMSOLL_INLINE void keep_largest(Block& block, int64_t at, const F32s& moment1, const F32s& root2) {
  for (int j = 0; j < kVectors; j += 2) {
    const int64_t group = (at + 16 * j) / kStateGroup;
    store_words(block.largest1[group], bits(max_magnitude(moment1[j], moment1[j + 1])));
    store_words(block.largest2[group], max_i(bits(abs(root2[j])), bits(abs(root2[j + 1]))));
  }
}

// Chooses and writes the scales of the first `count` groups of the block, which begins at element i.
PLIMSOLL_INLINE void choose_scales(const AdamW& args, int64_t i, int64_t count, Block& block) {
  for (int64_t group = count; group < kBlockScales; ++group) {
    store_words(block.largest1[group], set_i(0));
    store_words(block.largest2[group], set_i(0));
  }
  I32x16 lanes1[kBlockScales], lanes2[kBlockScales];
  for (int group = 0; group < kBlockScales; ++group) {
    lanes1[group] = load_words(block.largest1[group]);
    lanes2[group] = load_words(block.largest2[group]);
  }
  const F32x16 amax2 = from_bits(reduce_max_16(lanes2)), unit1 = load(block.unit1);
  // A gradient that is NaN makes both moments NaN, and max_magnitude may lose it.
  const Mask16 is_number = equal(add(amax2, unit1), add(amax2, unit1));
  const F32x16 amax1 = select(is_number, from_bits(reduce_max_16(lanes1)), from_bits(set_i(kInfBits)));
  const auto choose = [&](F32x16 amax, float unit, uint16_t* scale, float* inverse) {
    const F32x16 chosen = round_up_to_fp16(amax);
    store_fp16_n(scale + i / kStateGroup, chosen, count);
    // Zero where the scale is 0 or NaN.
    store(inverse, mul(select(less(zero(), chosen), div(set(1), chosen), zero()), set(unit)));
  };
  choose(amax1, 1, args.scale1, block.unit1);
  choose(amax2, 255, args.scale2, block.unit2);
  block.has_larger = any(less(set(kLargestScale), max(amax1, amax2))) || !all(is_number);
}

// Packs the moments of the elements from i on, which stand from `at` on in the block.
PLIMSOLL_INLINE void store_8bit(const AdamW& args, int64_t i, const Block& block, int64_t at, const F32s& moment1,
                                const F32s& root2, const I32s& words) {
  F32s m, root, inv_scale1, inv_unit2;
  for (int j = 0; j < kVectors; ++j) {
    m[j] = moment1[j];
    root[j] = root2[j];
  }
  if (__builtin_expect(block.has_larger, 0)) {
    for (int j = 0; j < kVectors; ++j) {
      m[j] = max(min(m[j], set(kLargestScale)), set(-kLargestScale));
      root[j] = min(root[j], set(kLargestScale));
    }
  }
  broadcast_units(block.unit1, at, inv_scale1);
  broadcast_units(block.unit2, at, inv_unit2);
  compress_moment1(m, inv_scale1, words, static_cast<int8_t*>(args.moment1) + i);
  compress_root2(root, inv_unit2, words, static_cast<uint8_t*>(args.moment2) + i);
}

}  // namespace
}  // namespace plimsoll::kernels
