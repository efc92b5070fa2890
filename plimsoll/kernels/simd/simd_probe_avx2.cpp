#define PLIMSOLL_PROBE kSimdProbeAvx2
#include "plimsoll/kernels/simd/simd_probe.inc"
