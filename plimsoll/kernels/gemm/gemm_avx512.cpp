// GEMM on AVX-512: every operand decoded to FP32, multiplied with FMA. Packing and epilogue serve BF16 pairs and tiles,
// too.
#include "plimsoll/kernels/gemm/gemm_epilogue.inc"
#include "plimsoll/kernels/gemm/gemm_pack.inc"
#include "plimsoll/kernels/gemm/gemm_pack_tiles.inc"

namespace plimsoll::kernels {
namespace {

constexpr Dword kProductDword = Dword::kFp32;

PLIMSOLL_INLINE __m512 accumulate(__m512 sum, __m512i a, __m512i b) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/gemm/gemm_few_avx512.inc"
#include "plimsoll/kernels/gemm/gemm_in_place_avx512.inc"
#include "plimsoll/kernels/gemm/gemm_tile_avx512.inc"

namespace plimsoll::kernels {

extern const GemmIsa kGemmAvx512 = {.panel_rows = 14,
                                    .few_rows = kMostFewRows,
                                    .pack_a = pack_a<14>,
                                    .pack_rows = pack_rows,
                                    .pack_b = pack_b,
                                    .expand = expand,
                                    .finish = finish,
                                    .multiply = multiply_tile,
                                    .multiply_few = multiply_few_rows,
                                    .multiply_few_columns = multiply_few_columns};

}  // namespace plimsoll::kernels
