#include "plimsoll/kernels/gradient/gradient_kernel.h"

namespace plimsoll::kernels {

GradientBlockSum gradient_block_avx512(const GradientBlock& block) { return run_any(block); }

}  // namespace plimsoll::kernels
