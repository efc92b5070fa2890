#include "plimsoll/kernels/sgd/sgd_body.inc"

namespace plimsoll::kernels {

int32_t sgd_part_avx2(const Sgd& part) { return sgd_any(part); }

}  // namespace plimsoll::kernels
