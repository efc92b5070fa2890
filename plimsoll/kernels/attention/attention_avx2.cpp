// Attention on AVX2 and FMA: 4 x 16 sums in eight registers.
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

constexpr int kTileRows = 4, kTileVectors = 1;

PLIMSOLL_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_exp2.inc"
#include "plimsoll/kernels/attention/attention_fp32.inc"

namespace plimsoll::kernels {

extern const AttentionIsa kAttentionAvx2 = {&kFew, forward_scratch, forward_part, backward_scratch, backward_part};

}  // namespace plimsoll::kernels
