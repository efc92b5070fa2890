#include <algorithm>

#include "plimsoll/kernels/transpose/transpose.h"
#include "plimsoll/kernels/transpose/transpose_avx2.h"
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

TransposeTile transpose_tile(int64_t element_bytes) {
  const bool avx2 = runtime::isa() >= runtime::Isa::kAvx2;
  if (element_bytes == 1) return avx2 ? transpose_bytes_avx2 : transpose_portable<uint8_t>;
  if (element_bytes == 2) return avx2 ? transpose_halves_avx2 : transpose_portable<uint16_t>;
  return avx2 ? transpose_words_avx2 : transpose_portable<uint32_t>;
}

void transpose(const Transpose& args) {
  constexpr int64_t kTileRows = 64, kTileCols = 256;
  const TransposeTile run = transpose_tile(args.element_bytes);
  const int64_t row_tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t col_tiles = (args.cols + kTileCols - 1) / kTileCols;
  runtime::parallel_for(row_tiles * col_tiles, 2, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      // Down the rows first: neighbouring tiles complete the lines of output that this one began.
      const int64_t row = index % row_tiles * kTileRows, col = index / row_tiles * kTileCols;
      Transpose tile = args;
      tile.x = static_cast<const char*>(args.x) + (row * args.x_stride + col) * args.element_bytes;
      tile.output = static_cast<char*>(args.output) + (col * args.output_stride + row) * args.element_bytes;
      tile.rows = std::min(kTileRows, args.rows - row);
      tile.cols = std::min(kTileCols, args.cols - col);
      run(tile, tile.rows);
    }
  });
}

}  // namespace plimsoll::kernels
