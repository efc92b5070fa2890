// Kernels of transpose.cu and how they are launched. transpose_E has E, the bytes of an element, in its name, and takes the
// arguments of transpose.h, whose pointers are the device's.
#pragma once

#include "plimsoll/format/host_device.h"
#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {

inline constexpr int kTransposeThreads = 256;
inline constexpr int kTransposeResident = 6;  // blocks of a multiprocessor: 48 KB of reads under way, or 96
inline constexpr int kTransposeCells = 16;    // of a tile, along each side; a thread has one of them

// Elements along each side of a cell. Each of its rows is a chunk, which one instruction moves: 16 bytes of 4-byte elements, else 8
// bytes, with which a tile's row still fills a line of 128. For cells of 8 x 8 2-byte elements the assembler wants 86 registers.
PLIMSOLL_HD constexpr int transpose_side(int64_t element_bytes) { return element_bytes == 1 ? 8 : 4; }

// Place in shared memory of chunk `chunk` of the tile's output row `row`, in chunks. Lanes that store a column of cells and lanes
// that load a row of chunks both find their chunks in different banks.
PLIMSOLL_HD constexpr int transpose_place(int row, int chunk, int side) {
  return row * kTransposeCells + (chunk ^ (row / side));
}

constexpr Launch transpose_launch(const Transpose& args, int multiprocessors) {
  const int64_t tile = kTransposeCells * transpose_side(args.element_bytes);
  return launch_over(pieces_of(args.rows, tile) * pieces_of(args.cols, tile), kTransposeThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
