// The loop, once for every ISA file.
#pragma once

#include "plimsoll/kernels/gradient/gradient_block.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

typedef float Floats8 __attribute__((vector_size(32)));
typedef double Doubles8 __attribute__((vector_size(64)));

// Sixteen chains of sums of squares. A square of a float is exact in double, so no instruction set can round
// differently.
struct SquareSums {
  Doubles8 low, high;
};

#if defined(__AVX512F__) && defined(__AVX512DQ__)
PLIMSOLL_INLINE void widen(F32x16 x, Doubles8& low, Doubles8& high) {
  low = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
  high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
}
#else
PLIMSOLL_INLINE void widen(F32x16 x, Doubles8& low, Doubles8& high) {
  Floats8 halves[2];
  static_assert(sizeof(halves) == sizeof(x));
  __builtin_memcpy(halves, &x, sizeof(halves));
  low = __builtin_convertvector(halves[0], Doubles8);
  high = __builtin_convertvector(halves[1], Doubles8);
}
#endif

PLIMSOLL_INLINE void add_squares(SquareSums& sums, F32x16 x) {
  Doubles8 low, high;
  widen(x, low, high);
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  sums.low = _mm512_fmadd_pd(low, low, sums.low);
  sums.high = _mm512_fmadd_pd(high, high, sums.high);
#else
  sums.low += low * low;
  sums.high += high * high;
#endif
}

PLIMSOLL_INLINE double total(const SquareSums& sums) {
  const Doubles8 eight = sums.low + sums.high;
  return ((eight[0] + eight[4]) + (eight[2] + eight[6])) + ((eight[1] + eight[5]) + (eight[3] + eight[7]));
}

template <Format kFormat>
PLIMSOLL_INLINE F32x16 load_gradient(const void* data, int64_t i, int64_t n) {
  if constexpr (kFormat == Format::kFp32) {
    const float* p = static_cast<const float*>(data) + i;
    return n == 16 ? load(p) : load_n(p, n);
  } else {
    const uint16_t* p = static_cast<const uint16_t*>(data) + i;
    if constexpr (kFormat == Format::kBf16) return n == 16 ? load_bf16(p) : load_bf16_n(p, n);
    return n == 16 ? load_fp16(p) : load_fp16_n(p, n);
  }
}

template <Format kFormat>
PLIMSOLL_INLINE void store_gradient(void* data, int64_t i, int64_t n, F32x16 x) {
  if constexpr (kFormat == Format::kFp32) {
    float* p = static_cast<float*>(data) + i;
    n == 16 ? store(p, x) : store_n(p, x, n);
  } else {
    uint16_t* p = static_cast<uint16_t*>(data) + i;
    if constexpr (kFormat == Format::kBf16) {
      n == 16 ? store_bf16(p, x) : store_bf16_n(p, x, n);
    } else {
      n == 16 ? store_fp16(p, x) : store_fp16_n(p, x, n);
    }
  }
}

// Lane-wise counts.
PLIMSOLL_INLINE I32x16 count_non_finite(I32x16 counts, F32x16 x) {
  const I32x16 magnitude = and_i(bits(x), set_i(0x7fffffff));
  return add_i(counts, select_i(less_i(set_i(0x7f7fffff), magnitude), set_i(1), set_i(0)));
}

PLIMSOLL_INLINE int64_t total(const I32x16& counts) {
  int32_t lanes[16];
  static_assert(sizeof(lanes) == sizeof(counts));
  __builtin_memcpy(lanes, &counts, sizeof(lanes));
  int64_t sum = 0;
  for (int32_t lane : lanes) sum += lane;
  return sum;
}

// How far ahead a block is asked for: what arrives while a line is squared. The hardware alone starts anew on every
// page.
constexpr int64_t kAheadBytes = 2048;

template <Format kFormat, bool kWrite>
GradientBlockSum run(const GradientBlock& block) {
  SquareSums squares = {};
  I32x16 non_finite = set_i(0);
  const int64_t count = block.count;
  void* data = block.data;
  const F32x16 scale = set(block.scale);
  const auto step = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    const F32x16 x = mul(load_gradient<kFormat>(data, i, n), scale);
    add_squares(squares, x);
    non_finite = count_non_finite(non_finite, x);
    if constexpr (kWrite) store_gradient<kFormat>(data, i, n, x);
  };
  constexpr int64_t kBytes = kFormat == Format::kFp32 ? 4 : 2;
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const char* ahead = static_cast<const char*>(data) + i * kBytes + kAheadBytes;
    for (int64_t byte = 0; byte < 32 * kBytes; byte += 64) __builtin_prefetch(ahead + byte, kWrite ? 1 : 0);
    step(i, 16);
    step(i + 16, 16);
  }
  for (; i < count; i += 16) step(i, count - i < 16 ? count - i : 16);
  return {total(squares), total(non_finite)};
}

template <Format kFormat>
GradientBlockSum run_format(const GradientBlock& block) {
  return block.write ? run<kFormat, true>(block) : run<kFormat, false>(block);
}

PLIMSOLL_INLINE GradientBlockSum run_any(const GradientBlock& block) {
  if (block.format == Format::kFp32) return run_format<Format::kFp32>(block);
  if (block.format == Format::kBf16) return run_format<Format::kBf16>(block);
  return run_format<Format::kFp16>(block);
}

}  // namespace
}  // namespace plimsoll::kernels
