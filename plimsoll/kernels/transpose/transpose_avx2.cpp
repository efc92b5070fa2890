#include "plimsoll/kernels/transpose/transpose_avx2.h"

#include <immintrin.h>

#include <cstdint>

namespace plimsoll::kernels {
namespace {

template <class Element>
inline __m256i interleave_low(__m256i a, __m256i b) {
  if constexpr (sizeof(Element) == 1) return _mm256_unpacklo_epi8(a, b);
  if constexpr (sizeof(Element) == 2) return _mm256_unpacklo_epi16(a, b);
  if constexpr (sizeof(Element) == 4) return _mm256_unpacklo_epi32(a, b);
}
template <class Element>
inline __m256i interleave_high(__m256i a, __m256i b) {
  if constexpr (sizeof(Element) == 1) return _mm256_unpackhi_epi8(a, b);
  if constexpr (sizeof(Element) == 2) return _mm256_unpackhi_epi16(a, b);
  if constexpr (sizeof(Element) == 4) return _mm256_unpackhi_epi32(a, b);
}

// 2 n rows of n columns, n = 16 bytes of elements: row i in the low lane of register i, row i + n in the high one.
// Interleaving the first half of the registers with the second is a perfect shuffle; log2(n) of them transpose each
// lane.
template <class Element>
inline void transpose_block(const Element* x, int64_t x_stride, Element* output, int64_t output_stride) {
  constexpr int n = 16 / sizeof(Element);
  __m256i rows[n], next[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i * x_stride));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + (i + n) * x_stride));
    rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
#pragma GCC unroll 4
  for (int round = 1; round < n; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = interleave_low<Element>(rows[i], rows[i + n / 2]);
      next[2 * i + 1] = interleave_high<Element>(rows[i], rows[i + n / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + i * output_stride), rows[i]);
}

// The line at the start of each row: rows lie on pages of their own, which the hardware does not foresee.
template <class Element>
inline void prefetch_rows(const Element* p, int64_t stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) __builtin_prefetch(p + i * stride);
}

template <class Element>
inline void transpose_any(const Transpose& tile, int64_t next_rows) {
  constexpr int64_t n = 16 / sizeof(Element), line = 64 / sizeof(Element);
  const auto* x = static_cast<const Element*>(tile.x);
  auto* output = static_cast<Element*>(tile.output);
  const int64_t whole_rows = tile.rows / (2 * n) * (2 * n), whole_cols = tile.cols / n * n;
  for (int64_t col = 0; col < whole_cols; col += n) {
    for (int64_t row = 0; row < whole_rows; row += 2 * n) {
      const Element* from = x + row * tile.x_stride + col;
      Element* to = output + col * tile.output_stride + row;
      if (next_rows > 0) {
        if (col % line == 0) prefetch_rows(from + next_rows * tile.x_stride, tile.x_stride, 2 * n);
        if (row % line == 0) prefetch_rows(to + next_rows, tile.output_stride, n);
      }
      transpose_block(from, tile.x_stride, to, tile.output_stride);
    }
  }
  for (int64_t col = 0; col < tile.cols; ++col) {
    for (int64_t row = col < whole_cols ? whole_rows : 0; row < tile.rows; ++row) {
      output[col * tile.output_stride + row] = x[row * tile.x_stride + col];
    }
  }
}

}  // namespace

void transpose_bytes_avx2(const Transpose& tile, int64_t next_rows) { transpose_any<uint8_t>(tile, next_rows); }
void transpose_halves_avx2(const Transpose& tile, int64_t next_rows) { transpose_any<uint16_t>(tile, next_rows); }
void transpose_words_avx2(const Transpose& tile, int64_t next_rows) { transpose_any<uint32_t>(tile, next_rows); }

}  // namespace plimsoll::kernels
