#include "plimsoll/kernels/gradient/gradient_kernel.h"

namespace plimsoll::kernels {

GradientBlockSum gradient_block_avx2(const GradientBlock& block) { return run_any(block); }

}  // namespace plimsoll::kernels
