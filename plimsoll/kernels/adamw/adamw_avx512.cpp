#include "plimsoll/kernels/adamw/adamw_kernel.h"

namespace plimsoll::kernels {

int32_t adamw_range_avx512(const AdamW& args, const AdamWCoefficients& c, int64_t begin, int64_t end) {
  return run_any(args, c, begin, end);
}

}  // namespace plimsoll::kernels
