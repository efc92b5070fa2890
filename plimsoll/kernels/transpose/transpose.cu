// Transposition on a CUDA device. A thread turns a square cell of elements in its registers; the cells of a tile go through
// shared memory, so that both matrices are read and written in whole lines.
#include "plimsoll/kernels/cuda/raw_run.cuh"
#include "plimsoll/kernels/cuda/tiles.cuh"
#include "plimsoll/kernels/transpose/transpose_launch.h"

namespace plimsoll::kernels {
namespace {

// A square of elements; a chunk is a row of it.
template <class T>
struct Cell {
  static constexpr int kSide = transpose_side(sizeof(T)), kBytes = kSide * sizeof(T);
  using Chunk = Words<kBytes>;
  Chunk chunks[kSide];

  // Column `col` of the cell.
  __device__ Chunk column(int col) const {
    Chunk result;
#pragma unroll
    for (int word = 0; word < kBytes / 4; ++word) {
      if constexpr (sizeof(T) == 4) {
        result.words[word] = chunks[word].words[col];
      } else if constexpr (sizeof(T) == 2) {
        const uint32_t low = chunks[2 * word].words[col / 2], high = chunks[2 * word + 1].words[col / 2];
        result.words[word] = __byte_perm(low, high, col % 2 == 0 ? 0x5410 : 0x7632);
      } else {
        const Chunk* four = chunks + 4 * word;
        const uint32_t pick = (col % 4) | (col % 4 + 4) << 4;
        const uint32_t low = __byte_perm(four[0].words[col / 4], four[1].words[col / 4], pick);
        const uint32_t high = __byte_perm(four[2].words[col / 4], four[3].words[col / 4], pick);
        result.words[word] = __byte_perm(low, high, 0x5410);
      }
    }
    return result;
  }
};

template <class T>
__device__ void transpose(const Transpose& args) {
  using Chunk = typename Cell<T>::Chunk;
  constexpr int kSide = Cell<T>::kSide, kBytes = Cell<T>::kBytes, kTile = kTransposeCells * kSide;
  __shared__ Chunk shared[kTile * kTransposeCells];
  const auto* x = static_cast<const T*>(args.x);
  auto* output = static_cast<T*>(args.output);
  const bool aligned = is_aligned(x, args.x_stride, kSide),
             aligned_output = is_aligned(output, args.output_stride, kSide);
  const int across = threadIdx.x % kTransposeCells, down = threadIdx.x / kTransposeCells;
  for (Tiles tiles(pieces_of(args.rows, kTile), pieces_of(args.cols, kTile)); tiles.is_in(); tiles.advance()) {
    Cell<T> cell;
    {
      const int64_t row = tiles.row * kTile + down * kSide, col = tiles.col * kTile + across * kSide;
      const int rows = in_reach<kSide>(args.rows - row), cols = in_reach<kSide>(args.cols - col);
      const T* from = x + row * args.x_stride + col;
#pragma unroll
      for (int i = 0; i < kSide; ++i, from += args.x_stride) {
        cell.chunks[i] = load_words<kBytes>(from, i < rows ? cols : 0, aligned && i < rows && cols == kSide);
      }
    }
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int i = 0; i < kSide; ++i) shared[transpose_place(across * kSide + i, down, kSide)] = cell.column(i);
    __syncthreads();
    const int64_t row = tiles.row * kTile + across * kSide;  // of x
    const int count = in_reach<kSide>(args.rows - row);
    int64_t col = tiles.col * kTile + down;
    T* to = output + col * args.output_stride + row;
#pragma unroll
    for (int i = 0; i < kSide; ++i, col += kTransposeCells, to += kTransposeCells * args.output_stride) {
      if (col >= args.cols) break;
      store_words<kBytes>(to, count, aligned_output && count == kSide,
                          shared[transpose_place(i * kTransposeCells + down, across, kSide)]);
    }
  }
}

}  // namespace

#define PLIMSOLL_KERNEL(bytes, T)                                                     \
  extern "C" __global__ void __launch_bounds__(kTransposeThreads, kTransposeResident) \
      transpose_##bytes(const __grid_constant__ Transpose args) {                     \
    transpose<T>(args);                                                               \
  }

PLIMSOLL_KERNEL(1, uint8_t)
PLIMSOLL_KERNEL(2, uint16_t)
PLIMSOLL_KERNEL(4, uint32_t)

}  // namespace plimsoll::kernels
