// runtime/philox.h for vector code: the same words, 64 at a time. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Both halves of the 64-bit product of each lane and one number.
struct WideProduct {
  I32x16 low, high;
};

// mul_wide: that product. zip4: in each group of four lanes, a 4 x 4 transpose; group g of the j-th result holds lane j
// of group g of w0, w1, w2 and w3.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE WideProduct mul_wide(I32x16 a, uint32_t factor) {
  const __m512i wide = _mm512_set1_epi64(factor);
  const __m512i even = _mm512_mul_epu32(a.v, wide), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), wide);
  constexpr __mmask16 kOdd = 0xaaaa;
  return {{_mm512_mask_blend_epi32(kOdd, even, _mm512_slli_epi64(odd, 32))},
          {_mm512_mask_blend_epi32(kOdd, _mm512_srli_epi64(even, 32), odd)}};
}
PLIMSOLL_INLINE void zip4(I32x16 w0, I32x16 w1, I32x16 w2, I32x16 w3, I32x16 (&zipped)[4]) {
  const __m512i low01 = _mm512_unpacklo_epi32(w0.v, w1.v), high01 = _mm512_unpackhi_epi32(w0.v, w1.v);
  const __m512i low23 = _mm512_unpacklo_epi32(w2.v, w3.v), high23 = _mm512_unpackhi_epi32(w2.v, w3.v);
  zipped[0] = {_mm512_unpacklo_epi64(low01, low23)};
  zipped[1] = {_mm512_unpackhi_epi64(low01, low23)};
  zipped[2] = {_mm512_unpacklo_epi64(high01, high23)};
  zipped[3] = {_mm512_unpackhi_epi64(high01, high23)};
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

PLIMSOLL_INLINE WideProduct mul_wide(I32x16 a, uint32_t factor) {
  const __m256i wide = _mm256_set1_epi64x(factor);
  const __m256i even_a = _mm256_mul_epu32(a.a, wide), odd_a = _mm256_mul_epu32(_mm256_srli_epi64(a.a, 32), wide);
  const __m256i even_b = _mm256_mul_epu32(a.b, wide), odd_b = _mm256_mul_epu32(_mm256_srli_epi64(a.b, 32), wide);
  constexpr int kOdd = 0xaa;
  return {{_mm256_blend_epi32(even_a, _mm256_slli_epi64(odd_a, 32), kOdd),
           _mm256_blend_epi32(even_b, _mm256_slli_epi64(odd_b, 32), kOdd)},
          {_mm256_blend_epi32(_mm256_srli_epi64(even_a, 32), odd_a, kOdd),
           _mm256_blend_epi32(_mm256_srli_epi64(even_b, 32), odd_b, kOdd)}};
}
PLIMSOLL_INLINE void zip8(__m256i w0, __m256i w1, __m256i w2, __m256i w3, __m256i (&zipped)[4]) {
  const __m256i low01 = _mm256_unpacklo_epi32(w0, w1), high01 = _mm256_unpackhi_epi32(w0, w1);
  const __m256i low23 = _mm256_unpacklo_epi32(w2, w3), high23 = _mm256_unpackhi_epi32(w2, w3);
  zipped[0] = _mm256_unpacklo_epi64(low01, low23);
  zipped[1] = _mm256_unpackhi_epi64(low01, low23);
  zipped[2] = _mm256_unpacklo_epi64(high01, high23);
  zipped[3] = _mm256_unpackhi_epi64(high01, high23);
}
PLIMSOLL_INLINE void zip4(I32x16 w0, I32x16 w1, I32x16 w2, I32x16 w3, I32x16 (&zipped)[4]) {
  __m256i first[4], second[4];
  zip8(w0.a, w1.a, w2.a, w3.a, first);
  zip8(w0.b, w1.b, w2.b, w3.b, second);
  for (int j = 0; j < 4; ++j) zipped[j] = {first[j], second[j]};
}

#else

PLIMSOLL_INLINE WideProduct mul_wide(I32x16 a, uint32_t factor) {
  WideProduct product;
  for (int lane = 0; lane < 16; ++lane) {
    const uint64_t wide = uint64_t{static_cast<uint32_t>(a.v[lane / 4][lane % 4])} * factor;
    product.low.v[lane / 4][lane % 4] = static_cast<int32_t>(wide);
    product.high.v[lane / 4][lane % 4] = static_cast<int32_t>(wide >> 32);
  }
  return product;
}
PLIMSOLL_INLINE void zip4(I32x16 w0, I32x16 w1, I32x16 w2, I32x16 w3, I32x16 (&zipped)[4]) {
  for (int j = 0; j < 4; ++j) {
    for (int group = 0; group < 4; ++group) {
      zipped[j].v[group] = I32x4{w0.v[group][j], w1.v[group][j], w2.v[group][j], w3.v[group][j]};
    }
  }
}

#endif

// Ten rounds on 16 counters, one a lane: counter[j] goes in as word j of each counter and comes out as random word j.
PLIMSOLL_INLINE void philox_rounds(uint64_t seed, I32x16 (&counter)[4]) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const WideProduct p0 = mul_wide(counter[0], kMultiply0), p1 = mul_wide(counter[2], kMultiply1);
    counter[0] = xor_i(xor_i(p1.high, counter[1]), set_i(static_cast<int32_t>(key0)));
    counter[1] = p1.low;
    counter[2] = xor_i(xor_i(p0.high, counter[3]), set_i(static_cast<int32_t>(key1)));
    counter[3] = p0.low;
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

// The counters of blocks first_block + offset[lane] of runtime::Philox{seed, step}; offsets are unsigned.
PLIMSOLL_INLINE void philox_counters(uint64_t step, uint64_t first_block, I32x16 offset, I32x16 (&counter)[4]) {
  const auto low_half = [](uint64_t x) { return set_i(static_cast<int32_t>(x)); };
  const auto high_half = [](uint64_t x) { return set_i(static_cast<int32_t>(x >> 32)); };
  const I32x16 sign = set_i(INT32_MIN);  // turns an unsigned comparison into a signed one
  counter[0] = add_i(low_half(first_block), offset);
  const Mask16 carry = less_i(xor_i(counter[0], sign), xor_i(offset, sign));
  counter[1] = add_i(high_half(first_block), select_i(carry, set_i(1), set_i(0)));
  counter[2] = low_half(step);
  counter[3] = high_half(step);
}

// The keys of the ten rounds, made once for many words. They stay in memory, from where a broadcast takes no
// arithmetic; known to be in registers, they would each be moved over for every 64 words.
struct PhiloxKeys {
  uint64_t seed;
  uint32_t even[10], odd[10];

  explicit PhiloxKeys(uint64_t words_seed) : seed(words_seed) {
    for (uint32_t round = 0; round < 10; ++round) {
      even[round] = static_cast<uint32_t>(seed) + round * 0x9E3779B9u;
      odd[round] = static_cast<uint32_t>(seed >> 32) + round * 0xBB67AE85u;
    }
    __asm__ volatile("" : "+m"(*this));
  }
};

// words[j], lane i = word 4 * first_block + 16 * j + i of runtime::Philox{seed, step}.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
// A counter's words in the low halves of eight 64-bit lanes, where products need no rearranging; what stands above them
// is not read.
PLIMSOLL_INLINE void philox_64_words(const PhiloxKeys& keys, uint64_t step, uint64_t first_block, I32x16 (&words)[4]) {
  const __m512i multiply0 = _mm512_set1_epi64(0xD2511F53), multiply1 = _mm512_set1_epi64(0xCD9E8D57);
  // Even lanes take blocks 0 to 3, odd ones 4 to 7, as unpacking wants them.
  const __m512i offset = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i c0[2], c1[2], c2[2], c3[2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    c0[half] = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first_block + 8 * static_cast<uint64_t>(half))),
                                offset);
    c1[half] = _mm512_srli_epi64(c0[half], 32);
    c2[half] = _mm512_set1_epi64(static_cast<int64_t>(step));
    c3[half] = _mm512_srli_epi64(c2[half], 32);
  }
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const __m512i k0 = _mm512_set1_epi32(static_cast<int32_t>(keys.even[round])),
                  k1 = _mm512_set1_epi32(static_cast<int32_t>(keys.odd[round]));
    constexpr int kXor3 = 0x96;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i p0 = _mm512_mul_epu32(c0[half], multiply0), p1 = _mm512_mul_epu32(c2[half], multiply1);
      c0[half] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1[half], k0, kXor3);
      c1[half] = p1;
      c2[half] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3[half], k1, kXor3);
      c3[half] = p0;
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    constexpr __mmask16 kOdd = 0xaaaa;
    const __m512i low = _mm512_mask_blend_epi32(kOdd, c0[half], _mm512_slli_epi64(c1[half], 32));
    const __m512i high = _mm512_mask_blend_epi32(kOdd, c2[half], _mm512_slli_epi64(c3[half], 32));
    words[2 * half] = {_mm512_unpacklo_epi64(low, high)};
    words[2 * half + 1] = {_mm512_unpackhi_epi64(low, high)};
  }
}
#else
PLIMSOLL_INLINE void philox_64_words(const PhiloxKeys& keys, uint64_t step, uint64_t first_block, I32x16 (&words)[4]) {
  // Lane 4 g + j takes block 4 j + g, so that zip4 leaves the words in order.
  alignas(64) constexpr int32_t kBlocks[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  I32x16 offset, counter[4];
  __builtin_memcpy(&offset, kBlocks, sizeof(offset));
  philox_counters(step, first_block, offset, counter);
  philox_rounds(keys.seed, counter);
  zip4(counter[0], counter[1], counter[2], counter[3], words);
}
#endif

}  // namespace
}  // namespace plimsoll::kernels
