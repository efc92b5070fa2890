#include "plimsoll/kernels/rescale/rescale_body.inc"

namespace plimsoll::kernels {

int32_t rescale_part_avx2(const Rescale& part) { return rescale_any(part); }

}  // namespace plimsoll::kernels
