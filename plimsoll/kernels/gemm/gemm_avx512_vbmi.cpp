// GEMM on AVX-512 with VBMI: what decodes FP8. All else is AVX-512's, and so are the bits.
#include <immintrin.h>

#include "plimsoll/kernels/gemm/gemm_pack.inc"

namespace plimsoll::kernels {
namespace {

constexpr Dword kProductDword = Dword::kFp32;

PLIMSOLL_INLINE __m512 accumulate(__m512 sum, __m512i a, __m512i b) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/gemm/gemm_few_avx512.inc"

namespace plimsoll::kernels {

void pack_a_vbmi(const PackPanels& args) { pack_a<14>(args); }
void pack_b_vbmi(const PackPanels& args) { pack_b(args); }
void expand_vbmi(const ExpandPanel& args) { expand(args); }
void multiply_few_vbmi(const FewRowsProduct& args) { multiply_few_rows(args); }

}  // namespace plimsoll::kernels
