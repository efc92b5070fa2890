#include "plimsoll/kernels/dequantize/dequantize_run.inc"

namespace plimsoll::kernels {

void dequantize_run_avx512(const DequantizeRun& run) { dequantize_any(run); }

}  // namespace plimsoll::kernels
