// One quantize_tensor as a list of tiles that any threads may run in any order, and a closing step.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_tile.h"
#include "plimsoll/kernels/row_blocks.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/kernels/transpose/transpose_tile.h"

namespace plimsoll::kernels {

struct TileRegion {
  int64_t row, col, rows, cols;
};

// What to quantize in a region; x is its first element.
struct TileInput {
  const void* x;
  format::Format format;
  int64_t stride;
};

class TensorPass {
 public:
  // Rows of a tile where columns are summed or codes transposed: also one cache line of transposed codes.
  static constexpr int64_t kTileRows = kRowBlock;
  static constexpr int64_t kTileCols = 512;  // with kTileRows: FP32 x fits half of a 256 KB L2

  // Takes its ISA from the calling thread.
  explicit TensorPass(const QuantizeTensor& args);

  int64_t tiles() const { return row_tiles_ * col_tiles_; }
  // Tiles that are worth waking a thread for.
  int64_t grain() const;
  TileRegion region(int64_t tile) const;
  // The region of args.x.
  TileInput input(const TileRegion& region) const;

  // Floats that column sums need while the tiles run; 0 without column_sum.
  int64_t partial_sum_floats() const { return args_.column_sum != nullptr ? row_tiles_ * args_.cols : 0; }
  void set_partial_sums(float* sums) { partial_sums_ = sums; }

  void run(const TileRegion& region, const TileInput& input);
  // After every tile: writes column sums and counts, returns the amax.
  float finish();

 private:
  void add_counts(const QuantizeCounts& counts);

  QuantizeTensor args_;
  const QuantizeTileKernels& kernels_;
  TransposeTiles transpose_;
  int64_t tile_rows_, tile_cols_, row_tiles_, col_tiles_;
  float* partial_sums_ = nullptr;  // [row_tiles, cols]
  SharedAmax amax_;
  std::array<std::atomic<int64_t>, 4> counts_{};
};

}  // namespace plimsoll::kernels
