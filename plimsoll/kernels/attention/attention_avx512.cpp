// Attention on AVX-512 with FP32 FMA: 4 x 64 sums in sixteen registers.
#include "plimsoll/kernels/attention/attention_exp2_avx512.inc"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

constexpr int kTileRows = 4, kTileVectors = 4;

PLIMSOLL_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_fp32.inc"

namespace plimsoll::kernels {

extern const AttentionIsa kAttentionAvx512 = {&kFew, forward_scratch, forward_part, backward_scratch, backward_part};

}  // namespace plimsoll::kernels
