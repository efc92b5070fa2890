#include "plimsoll/kernels/rescale/pointwise_body.inc"
#include "plimsoll/kernels/rescale/rescale_body.inc"

namespace plimsoll::kernels {

int32_t rescale_part_avx2(const Rescale& part) { return rescale_any(part); }
PointwisePart pointwise_part_avx2(const Pointwise& part) { return pointwise_any(part); }

}  // namespace plimsoll::kernels
