// Attention without any instruction set by name: product and sum rounded separately.
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

constexpr int kTileRows = 4, kTileVectors = 1;

PLIMSOLL_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) { return add(mul(a, b), c); }

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_exp2.inc"
#include "plimsoll/kernels/attention/attention_fp32.inc"

namespace plimsoll::kernels {

extern const AttentionIsa kAttentionPortable = {&kFew, forward_scratch, forward_part, backward_scratch, backward_part};

}  // namespace plimsoll::kernels
