#include "plimsoll/kernels/pointwise/pointwise_body.inc"

namespace plimsoll::kernels {

PointwisePart pointwise_part_avx2(const Pointwise& part) { return pointwise_any(part); }

}  // namespace plimsoll::kernels
