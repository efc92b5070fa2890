// runtime/philox.h for vector code: the same words, of 16 blocks at a time. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Both halves of the 64-bit product of each lane and one number.
struct WideProduct {
  I32x16 low, high;
};

// That product.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

PLIMSOLL_INLINE WideProduct mul_wide(I32x16 a, uint32_t factor) {
  const __m512i wide = _mm512_set1_epi64(factor);
  const __m512i even = _mm512_mul_epu32(a.v, wide), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), wide);
  constexpr __mmask16 kOdd = 0xaaaa;
  return {{_mm512_mask_blend_epi32(kOdd, even, _mm512_slli_epi64(odd, 32))},
          {_mm512_mask_blend_epi32(kOdd, _mm512_srli_epi64(even, 32), odd)}};
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

}  // namespace
}  // namespace plimsoll::kernels
