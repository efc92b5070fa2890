// Attention on tiles of BF16 by TDPBF16PS; what is no product is AVX-512's.
#include "plimsoll/kernels/attention/attention_pairs_avx512.inc"

namespace plimsoll::kernels {
namespace {

constexpr int kTileRows = 4, kTileVectors = 4;

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_backward.inc"
#include "plimsoll/kernels/attention/attention_forward.inc"

namespace plimsoll::kernels {

extern const AttentionIsa kAttentionAmx = {&kAttentionFewAmx, forward_scratch, forward_part, backward_scratch,
                                           backward_part};

}  // namespace plimsoll::kernels
