// Attention on pairs of BF16 by VDPBF16PS.
#include "plimsoll/kernels/attention/attention_pairs_avx512.inc"

namespace plimsoll::kernels {
namespace {

constexpr int kTileRows = 4, kTileVectors = 4;

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_backward.inc"
#include "plimsoll/kernels/attention/attention_few.inc"
#include "plimsoll/kernels/attention/attention_forward.inc"

namespace plimsoll::kernels {

extern const AttentionIsa kAttentionAvx512Bf16 = {&kFew, forward_scratch, forward_part, backward_scratch,
                                                  backward_part};

}  // namespace plimsoll::kernels
