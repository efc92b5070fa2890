#define PLIMSOLL_PROBE kSimdProbePortable
#include "plimsoll/kernels/simd/simd_probe.inc"
