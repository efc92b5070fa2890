// Attention on pairs of BF16: VDPBF16PS, exact products, FP32 accumulation, subnormals taken and left as zero.
#include "plimsoll/kernels/attention/attention_exp2_avx512.inc"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

constexpr bool kPairs = true;
constexpr int kTileRows = 4, kTileVectors = 4;

PLIMSOLL_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

PLIMSOLL_INLINE F32x16 accumulate(F32x16 sum, F32x16 a, F32x16 b) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_castps_si512(a.v), (__m512bh)_mm512_castps_si512(b.v))};
}

PLIMSOLL_INLINE F32x16 guard(F32x16 a, F32x16 b) {
  const __mmask32 factors = _mm512_test_epi16_mask(_mm512_castps_si512(a.v), _mm512_set1_epi16(0x7fff));
  return {_mm512_castsi512_ps(_mm512_maskz_mov_epi16(factors, _mm512_castps_si512(b.v)))};
}

// Row k of the result joins rows 2 k and 2 k + 1; `count` is even.
const float* join_rows(const float* rows, int64_t count, int64_t pitch, float* to) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  for (int64_t row = 0; row < count; row += 2) {
    const float* even = rows + row * pitch;
    for (int64_t i = 0; i < pitch; i += 16) {
      const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(even + pitch + i), _mm512_loadu_ps(even + i));
      _mm512_storeu_si512(to + row / 2 * pitch + i, _mm512_permutexvar_epi16(interleave, (__m512i)halves));
    }
  }
  return to;
}

// 32 channels of two rows of BF16 from the elements even and odd on, a dword for each channel.
struct Joined {
  F32x16 channels[2];
};
template <class Rows>
PLIMSOLL_INLINE Joined join_halves(const Rows& rows, int64_t even, int64_t odd) {
  const uint16_t* data = static_cast<const uint16_t*>(rows.data);
  alignas(64) static constexpr uint16_t kFirst[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i first = _mm512_load_si512(kFirst), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  const __m512i a = _mm512_loadu_si512(data + even), b = _mm512_loadu_si512(data + odd);
  return {{{_mm512_castsi512_ps(_mm512_permutex2var_epi16(a, first, b))},
           {_mm512_castsi512_ps(_mm512_permutex2var_epi16(a, second, b))}}};
}

// Each row in dwords of two neighbours; the pitch is even.
const float* join_columns(const float* rows, int64_t count, int64_t pitch, float* to) {
  for (int64_t i = 0; i < count * pitch; i += 16) {
    _mm256_storeu_si256((__m256i*)(to + i / 2), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(rows + i)));
  }
  return to;
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_backward.inc"
#include "plimsoll/kernels/attention/attention_few.inc"
#include "plimsoll/kernels/attention/attention_forward.inc"

namespace plimsoll::kernels {

extern const AttentionIsa kAttentionAvx512Bf16 = {forward_scratch, forward_part, few_scratch,      few_size,
                                                  few_scores,      few_values,   backward_scratch, backward_part};

}  // namespace plimsoll::kernels
