// Statistic of a quantization from the sums of its tiles. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_loops.h"

namespace plimsoll::kernels {

// Sums of all tiles, each of which one thread sets.
class TileErrors {
 public:
  // No tiles: nobody wants the statistic.
  explicit TileErrors(int64_t tiles) : tiles_(static_cast<size_t>(tiles)), first_cols_(tiles_.size()) {}

  bool are_wanted() const { return !tiles_.empty(); }
  // Sums of a tile whose first column is that one of the matrix.
  ErrorSums& of(int64_t tile, int64_t first_col) {
    first_cols_[static_cast<size_t>(tile)] = first_col;
    return tiles_[static_cast<size_t>(tile)];
  }

  QuantizeStatistic joined() const;

 private:
  std::vector<ErrorSums> tiles_;
  std::vector<int64_t> first_cols_;
};

}  // namespace plimsoll::kernels
