// The microkernels of BF16 pairs: VDPBF16PS, exact products, FP32 accumulation, subnormals taken and left as zero.
// Packing and epilogue are AVX-512's.
#include <immintrin.h>

#include "plimsoll/kernels/gemm/decode_dword.h"

namespace plimsoll::kernels {
namespace {

constexpr Dword kProductDword = Dword::kBf16Pair;

PLIMSOLL_INLINE __m512 accumulate(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/gemm/gemm_few_avx512.inc"
#include "plimsoll/kernels/gemm/gemm_in_place_avx512.inc"
#include "plimsoll/kernels/gemm/gemm_tile_avx512.inc"

namespace plimsoll::kernels {

void multiply_pairs_avx512_bf16(const TileProduct& args) { multiply_tile(args); }

void multiply_few_pairs_avx512_bf16(const FewRowsProduct& args) { multiply_few_rows(args); }

void multiply_few_columns_avx512_bf16(const FewRowsOfColumns& args) { multiply_few_columns(args); }

}  // namespace plimsoll::kernels
