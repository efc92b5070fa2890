#include <immintrin.h>

#include "plimsoll/kernels/limits/limits_isa.h"

namespace plimsoll::kernels {

int64_t multiply_add_avx512(int64_t count) {
  __m512 sum[24];
#pragma GCC unroll 24
  for (__m512& lanes : sum) {
    lanes = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(lanes));  // chains that look alike would be merged into one
  }
  __m512 factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < count; ++i) {
    __asm__ volatile("" : "+v"(factor), "+v"(term));
#pragma GCC unroll 24
    for (__m512& lanes : sum) lanes = _mm512_fmadd_ps(lanes, factor, term);
  }
#pragma GCC unroll 24
  for (__m512& lanes : sum) __asm__ volatile("" : : "v"(lanes));
  return 24 * 16 * 2;
}

}  // namespace plimsoll::kernels
