#define PLIMSOLL_PROBE kSimdProbeAvx512
#include "plimsoll/kernels/simd/simd_probe.inc"
