#include <algorithm>

#include "plimsoll/kernels/transpose/transpose.h"
#include "plimsoll/kernels/transpose/transpose_avx2.h"
#include "plimsoll/kernels/transpose/transpose_avx512.h"
#include "plimsoll/kernels/transpose/transpose_tile.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

// In squares whose lines of both sides fit L1 together.
template <class Element>
void transpose_portable(const Transpose& tile, int64_t) {
  constexpr int64_t kSquare = 16;
  const auto* x = static_cast<const Element*>(tile.x);
  auto* output = static_cast<Element*>(tile.output);
  for (int64_t col_begin = 0; col_begin < tile.cols; col_begin += kSquare) {
    const int64_t col_end = std::min(col_begin + kSquare, tile.cols);
    for (int64_t row_begin = 0; row_begin < tile.rows; row_begin += kSquare) {
      const int64_t row_end = std::min(row_begin + kSquare, tile.rows);
      for (int64_t col = col_begin; col < col_end; ++col) {
        for (int64_t row = row_begin; row < row_end; ++row) {
          output[col * tile.output_stride + row] = x[row * tile.x_stride + col];
        }
      }
    }
  }
}

}  // namespace

TransposeTiles::TransposeTiles(const Transpose& whole) {
  // Beyond it, what is written first has left a core's own cache before the last is written.
  constexpr int64_t kStays = 4 << 20;
  constexpr int64_t kLine = 64;
  const int64_t bytes = whole.element_bytes, index = bytes == 1 ? 0 : bytes == 2 ? 1 : 2;
  constexpr decltype(cached_) kPortable[] = {transpose_portable<uint8_t>, transpose_portable<uint16_t>,
                                             transpose_portable<uint32_t>};
  constexpr decltype(cached_) kAvx2[] = {transpose_bytes_avx2, transpose_halves_avx2, transpose_words_avx2};
  constexpr decltype(stream_) kStreamAvx2[] = {stream_bytes_avx2, stream_halves_avx2, stream_words_avx2};
  constexpr decltype(stream_) kStreamAvx512[] = {stream_bytes_avx512, stream_halves_avx512, stream_words_avx512};
  const runtime::Isa isa = runtime::isa();
  cached_ = isa >= runtime::Isa::kAvx2 ? kAvx2[index] : kPortable[index];
  const bool whole_lines = reinterpret_cast<uintptr_t>(whole.output) % kLine == 0 &&
                           whole.output_stride * bytes % kLine == 0 && whole.rows * bytes >= kLine;
  const bool large = whole.rows * whole.cols * bytes > kStays;
  if (!whole_lines || !large) return;
  if (isa >= runtime::Isa::kAvx2) stream_ = kStreamAvx2[index];
  if (isa >= runtime::Isa::kAvx512) stream_ = kStreamAvx512[index];
}

void TransposeTiles::run(const Transpose& tile, int64_t next_rows) const {
  if (!streams()) return cached_(tile, next_rows);
  stream_(tile);
  const int64_t bytes = tile.element_bytes, whole_rows = tile.rows * bytes / 64 * 64 / bytes;
  const int64_t whole_cols = tile.cols * bytes / 16 * 16 / bytes;
  const auto rest = [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
    Transpose part = tile;
    part.x = static_cast<const char*>(tile.x) + (row * tile.x_stride + col) * bytes;
    part.output = static_cast<char*>(tile.output) + (col * tile.output_stride + row) * bytes;
    part.rows = rows;
    part.cols = cols;
    if (rows > 0 && cols > 0) cached_(part, 0);
  };
  rest(0, whole_cols, whole_rows, tile.cols - whole_cols);
  rest(whole_rows, 0, tile.rows - whole_rows, tile.cols);
}

void transpose(const Transpose& args) {
  constexpr int64_t kTileRows = 64, kTileCols = 256;
  const TransposeTiles tiles(args);
  const int64_t row_tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t col_tiles = (args.cols + kTileCols - 1) / kTileCols;
  runtime::parallel_for(row_tiles * col_tiles, 2, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t row_tile = tiles.streams() ? index / col_tiles : index % row_tiles;
      const int64_t col_tile = tiles.streams() ? index % col_tiles : index / row_tiles;
      const int64_t row = row_tile * kTileRows, col = col_tile * kTileCols;
      Transpose tile = args;
      tile.x = static_cast<const char*>(args.x) + (row * args.x_stride + col) * args.element_bytes;
      tile.output = static_cast<char*>(args.output) + (col * args.output_stride + row) * args.element_bytes;
      tile.rows = std::min(kTileRows, args.rows - row);
      tile.cols = std::min(kTileCols, args.cols - col);
      tiles.run(tile, tile.rows);
    }
  });
}

}  // namespace plimsoll::kernels
