#include <immintrin.h>

#include "plimsoll/kernels/limits/limits_isa.h"

namespace plimsoll::kernels {

int64_t multiply_add_avx2(int64_t count) {
  __m256 sum[12];
#pragma GCC unroll 12
  for (__m256& lanes : sum) {
    lanes = _mm256_setzero_ps();
    __asm__ volatile("" : "+x"(lanes));  // chains that look alike would be merged into one
  }
  __m256 factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < count; ++i) {
    __asm__ volatile("" : "+x"(factor), "+x"(term));
#pragma GCC unroll 12
    for (__m256& lanes : sum) lanes = _mm256_fmadd_ps(lanes, factor, term);
  }
#pragma GCC unroll 12
  for (__m256& lanes : sum) __asm__ volatile("" : : "x"(lanes));
  return 12 * 8 * 2;
}

}  // namespace plimsoll::kernels
