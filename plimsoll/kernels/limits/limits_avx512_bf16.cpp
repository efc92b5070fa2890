#include <immintrin.h>

#include "plimsoll/kernels/limits/limits_isa.h"

namespace plimsoll::kernels {

int64_t dot_pairs_avx512_bf16(int64_t count) {
  __m512 sum[24];
#pragma GCC unroll 24
  for (__m512& lanes : sum) {
    lanes = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(lanes));  // chains that look alike would be merged into one
  }
  __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_set1_epi32(0x3f003f00);  // BF16 1.0 and 0.5
  for (int64_t i = 0; i < count; ++i) {
    __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (__m512& lanes : sum) lanes = _mm512_dpbf16_ps(lanes, (__m512bh)a, (__m512bh)b);
  }
#pragma GCC unroll 24
  for (__m512& lanes : sum) __asm__ volatile("" : : "v"(lanes));
  return 24 * 32 * 2;
}

}  // namespace plimsoll::kernels
