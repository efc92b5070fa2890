// Few queries with the bits that attention_amx.cpp gives many: weights rounded to BF16, FP32 multiply-adds in the chains
// of TDPBF16PS. A tile of one query or two would be multiplied mostly for nothing, and keys and values be joined for it.
#include "plimsoll/kernels/attention/attention_exp2_avx512.inc"
#include "plimsoll/kernels/attention/attention_isa.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

PLIMSOLL_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_operand_fp32.inc"

namespace plimsoll::kernels {
namespace {

constexpr bool kChains = true;
constexpr int kTileRows = 4, kTileVectors = 2;  // three sums each

// Subnormals are taken and left as zero, as TDPBF16PS does.
class ChainMode {
 public:
  ChainMode() { set_mode(before_ | kFlushZero | kDenormalsZero); }
  ~ChainMode() { set_mode(before_); }
  ChainMode(const ChainMode&) = delete;
  ChainMode& operator=(const ChainMode&) = delete;

 private:
  static constexpr unsigned kFlushZero = 0x8000, kDenormalsZero = 0x40;
  // All that is computed in between is loaded and stored in between.
  static void set_mode(unsigned mode) {
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(mode);
    __asm__ volatile("" : : : "memory");
  }
  const unsigned before_ = _mm_getcsr();
};

}  // namespace
}  // namespace plimsoll::kernels

#include "plimsoll/kernels/attention/attention_few.inc"

namespace plimsoll::kernels {

extern const AttentionFew kAttentionFewAmx = kFew;

}  // namespace plimsoll::kernels
