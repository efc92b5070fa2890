// FP16 as the exact sum of two BF16 of its sign, in one dword: the larger in the lower half. The larger is the next
// BF16 below the value in magnitude, 8 of FP16's 11 bits; the rest is 3 bits or a power of two. Both are normal (the
// smallest is 2^-32), so are their products, and neither is zero unless the value is: an infinity (the largest BF16 and
// an infinity) times any number but zero is an infinity. Internal linkage, because ISA files use it.
#pragma once

#include "plimsoll/kernels/gemm/decode_dword.h"

namespace plimsoll::kernels {
namespace {

// x: FP16 values in FP32.
PLIMSOLL_INLINE I32x16 split_fp16(F32x16 x) {
  const F32x16 below = from_bits(and_i(sub_i(bits(x), set_i(1)), set_i(INT32_C(-0x10000))));
  const Mask16 is_zero = equal(x, zero());
  return join_pair(select(is_zero, x, below), select(is_zero, x, sub(x, below)));
}

PLIMSOLL_INLINE F32x16 join_fp16(I32x16 split) {
  return add(from_bits(shift_left<16>(split)), from_bits(and_i(split, set_i(INT32_C(-0x10000)))));
}

PLIMSOLL_INLINE I32x16 swap_halves(I32x16 x) { return or_i(shift_left<16>(x), shift_right<16>(x)); }

}  // namespace
}  // namespace plimsoll::kernels
