// Runs of a matrix's rows, a thread to each, launched by row_launch().
#pragma once

#include "plimsoll/kernels/cuda/row_launch.h"
#include "plimsoll/kernels/cuda/tiles.cuh"

namespace plimsoll::kernels {

// body(row, run) for each run of each row, of which this thread has some. kThreads: those of a block.
template <int kThreads, class Body>
__device__ inline void for_row_runs(int64_t rows, int64_t runs, Body body) {
  const RowThreads threads = row_threads(runs, kThreads);
  const int row_in_block = threadIdx.x / threads.lanes, lane = threadIdx.x % threads.lanes;
  if (row_in_block >= threads.rows) return;
  for (Tiles tiles(pieces_of(rows, threads.rows), pieces_of(runs, threads.lanes)); tiles.is_in(); tiles.advance()) {
    const int64_t row = tiles.row * threads.rows + row_in_block, run = tiles.col * threads.lanes + lane;
    if (row < rows && run < runs) body(row, run);
  }
}

}  // namespace plimsoll::kernels
