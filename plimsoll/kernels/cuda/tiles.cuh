// Tiles of a matrix, of which a block of the launch takes every gridDim.x-th.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

// Place of a block's tile among `down` x `across`, row after row. One division for all of a block's tiles.
class Tiles {
 public:
  __device__ Tiles(int64_t down, int64_t across)
      : row(blockIdx.x / across),
        col(blockIdx.x % across),
        down_(down),
        across_(across),
        row_step_(gridDim.x / across),
        col_step_(gridDim.x % across) {}

  __device__ bool is_in() const { return row < down_; }
  __device__ void advance() {
    row += row_step_;
    col += col_step_;
    if (col >= across_) {
      col -= across_;
      ++row;
    }
  }

  int64_t row, col;  // in tiles

 private:
  int64_t down_, across_, row_step_, col_step_;
};

}  // namespace plimsoll::kernels
