// The microkernel of BF16 pairs: VDPBF16PS, exact products, FP32 accumulation, subnormals taken and left as zero.
// Packing and epilogue are AVX-512's.
#include <immintrin.h>

#include "plimsoll/kernels/gemm/gemm_isa.h"

namespace plimsoll::kernels {
namespace {

static inline __attribute__((always_inline)) __m512 accumulate(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/gemm/gemm_tile_avx512.inc"

namespace plimsoll::kernels {

void multiply_pairs_avx512_bf16(const TileProduct& args) { multiply_tile(args); }

}  // namespace plimsoll::kernels
