// Transposition of one tile on the calling thread, for kernels that transpose what they have just written.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {

// Transposition of one matrix's tiles, under runtime::isa() of the thread that asks.
class TransposeTiles {
 public:
  // Chooses for `whole`, whose x is not read here and may be nullptr.
  explicit TransposeTiles(const Transpose& whole);

  // Whether whole lines of output go past the caches, as suits a matrix that does not stay there. Tiles then come in
  // the order in which x is read, row after row of them; otherwise it is better to go down the rows first, where
  // neighbouring tiles complete the lines that one began.
  bool streams() const { return stream_ != nullptr; }

  // Tiles start at multiples of 64 rows. next_rows: 0, or the rows down to the tile that comes next, whose lines are
  // asked for meanwhile; not used where the output streams.
  void run(const Transpose& tile, int64_t next_rows) const;

 private:
  void (*cached_)(const Transpose& tile, int64_t next_rows);
  void (*stream_)(const Transpose& tile) = nullptr;
};

}  // namespace plimsoll::kernels
