// GEMM on AVX-512: every operand decoded to FP32, multiplied with FMA.
#include "plimsoll/kernels/gemm/gemm_epilogue.inc"
#include "plimsoll/kernels/gemm/gemm_pack.inc"

namespace plimsoll::kernels {
namespace {

PLIMSOLL_INLINE __m512 accumulate(__m512 sum, __m512i a, __m512i b) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/gemm/gemm_tile_avx512.inc"

namespace plimsoll::kernels {

extern const GemmIsa kGemmAvx512 = {14, pack_a<14>, pack_b, multiply_tile, nullptr, finish};

}  // namespace plimsoll::kernels
