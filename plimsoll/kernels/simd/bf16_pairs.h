// 32 BF16 elements as their even and their odd ones: half the instructions of load_bf16 and store_bf16 twice, for
// kernels that do not care which lane an element is in.
#pragma once

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

struct Bf16Pairs {
  F32x16 even, odd;  // elements 0, 2, ... and 1, 3, ...
};

PLIMSOLL_INLINE Bf16Pairs load_bf16_pairs(const uint16_t* p) {
  const I32x16 words = bits(load(reinterpret_cast<const float*>(p)));
  return {from_bits(shift_left<16>(words)), from_bits(and_i(words, set_i(INT32_C(-0x10000))))};
}

// Nearest even. NaN stays NaN where its lower 16 bits are 0, as in one decoded from BF16 or made by the processor.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
PLIMSOLL_INLINE void store_bf16_pairs(uint16_t* p, Bf16Pairs x) {
  _mm512_storeu_si512(p, round_to_bf16(split_words(x.even, x.odd)));
}
#else
PLIMSOLL_INLINE void store_bf16_pairs(uint16_t* p, Bf16Pairs x) {
  auto rounded = [](F32x16 value) __attribute__((always_inline)) {
    const I32x16 word = bits(value), odd = and_i(shift_right<16>(word), set_i(1));
    return add_i(add_i(word, set_i(0x7fff)), odd);
  };
  const I32x16 low = shift_right<16>(rounded(x.even)), high = and_i(rounded(x.odd), set_i(INT32_C(-0x10000)));
  store(reinterpret_cast<float*>(p), from_bits(or_i(low, high)));
}
#endif

}  // namespace
}  // namespace plimsoll::kernels
