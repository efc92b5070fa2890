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
inline void load_transposed(const Element* x, int64_t x_stride, __m256i (&rows)[16 / sizeof(Element)]) {
  constexpr int n = 16 / sizeof(Element);
  __m256i next[n];
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
}

template <class Element>
inline void transpose_block(const Element* x, int64_t x_stride, Element* output, int64_t output_stride) {
  constexpr int n = 16 / sizeof(Element);
  __m256i rows[n];
  load_transposed(x, x_stride, rows);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + i * output_stride), rows[i]);
}

// 4 n rows of n columns, whose lines of output go past the caches, both halves one after the other.
template <class Element>
inline void stream_block(const Element* x, int64_t x_stride, Element* output, int64_t output_stride) {
  constexpr int n = 16 / sizeof(Element);
  __m256i low[n], high[n];
  load_transposed(x, x_stride, low);
  load_transposed(x + 2 * n * x_stride, x_stride, high);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    auto* line = reinterpret_cast<__m256i*>(output + i * output_stride);
    _mm256_stream_si256(line, low[i]);
    _mm256_stream_si256(line + 1, high[i]);
  }
}

// A line of each of 4 n rows comes to one place first: lines a power of two apart would drive each other out of L1 between
// the blocks that read them.
template <class Element>
inline void stream_any(const Transpose& tile) {
  constexpr int64_t n = 16 / sizeof(Element), line = 4 * n;
  constexpr int64_t kAhead = 2 * line;  // elements of a row
  const auto* x = static_cast<const Element*>(tile.x);
  auto* output = static_cast<Element*>(tile.output);
  alignas(64) Element staged[line * line];
  for (int64_t row = 0; row + line <= tile.rows; row += line) {
    const Element* from = x + row * tile.x_stride;
    Element* to = output + row;
    int64_t col = 0;
    for (; col + line <= tile.cols; col += line) {
      for (int64_t i = 0; i < line; ++i) {
        const Element* source = from + i * tile.x_stride + col;
        __builtin_prefetch(source + kAhead);
        const auto* halves = reinterpret_cast<const __m256i*>(source);
        auto* place = reinterpret_cast<__m256i*>(staged + i * line);
        _mm256_store_si256(place, _mm256_loadu_si256(halves));
        _mm256_store_si256(place + 1, _mm256_loadu_si256(halves + 1));
      }
      for (int64_t block = 0; block < line; block += n) {
        stream_block(staged + block, line, to + (col + block) * tile.output_stride, tile.output_stride);
      }
    }
    for (; col + n <= tile.cols; col += n) {
      stream_block(from + col, tile.x_stride, to + col * tile.output_stride, tile.output_stride);
    }
  }
  _mm_sfence();
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

void stream_bytes_avx2(const Transpose& tile) { stream_any<uint8_t>(tile); }
void stream_halves_avx2(const Transpose& tile) { stream_any<uint16_t>(tile); }
void stream_words_avx2(const Transpose& tile) { stream_any<uint32_t>(tile); }

}  // namespace plimsoll::kernels
