#include "plimsoll/kernels/transpose/transpose_avx512.h"

#include <immintrin.h>

#include <cstdint>

namespace plimsoll::kernels {
namespace {

template <class Element>
inline __m512i interleave_low(__m512i a, __m512i b) {
  if constexpr (sizeof(Element) == 1) return _mm512_unpacklo_epi8(a, b);
  if constexpr (sizeof(Element) == 2) return _mm512_unpacklo_epi16(a, b);
  if constexpr (sizeof(Element) == 4) return _mm512_unpacklo_epi32(a, b);
}
template <class Element>
inline __m512i interleave_high(__m512i a, __m512i b) {
  if constexpr (sizeof(Element) == 1) return _mm512_unpackhi_epi8(a, b);
  if constexpr (sizeof(Element) == 2) return _mm512_unpackhi_epi16(a, b);
  if constexpr (sizeof(Element) == 4) return _mm512_unpackhi_epi32(a, b);
}

// As transpose_block of transpose_avx2.cpp with 4 n rows: rows i, i + n, i + 2 n, i + 3 n in the lanes of register i,
// so that a register ends as a line of output.
template <class Element>
inline void stream_block(const Element* x, int64_t x_stride, Element* output, int64_t output_stride) {
  constexpr int n = 16 / sizeof(Element);
  const auto lane = [=](int64_t row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + row * x_stride)); };
  __m512i rows[n], next[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    __m512i row = _mm512_castsi128_si512(lane(i));
    row = _mm512_inserti32x4(row, lane(i + n), 1);
    row = _mm512_inserti32x4(row, lane(i + 2 * n), 2);
    rows[i] = _mm512_inserti32x4(row, lane(i + 3 * n), 3);
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
  for (int i = 0; i < n; ++i) _mm512_stream_si512(reinterpret_cast<__m512i*>(output + i * output_stride), rows[i]);
}

template <class Element>
inline void stream_any(const Transpose& tile) {
  constexpr int64_t n = 16 / sizeof(Element);
  const auto* x = static_cast<const Element*>(tile.x);
  auto* output = static_cast<Element*>(tile.output);
  for (int64_t row = 0; row + 4 * n <= tile.rows; row += 4 * n) {
    for (int64_t col = 0; col + n <= tile.cols; col += n) {
      stream_block(x + row * tile.x_stride + col, tile.x_stride, output + col * tile.output_stride + row,
                   tile.output_stride);
    }
  }
  _mm_sfence();
}

}  // namespace

void stream_bytes_avx512(const Transpose& tile) { stream_any<uint8_t>(tile); }
void stream_halves_avx512(const Transpose& tile) { stream_any<uint16_t>(tile); }
void stream_words_avx512(const Transpose& tile) { stream_any<uint32_t>(tile); }

}  // namespace plimsoll::kernels
