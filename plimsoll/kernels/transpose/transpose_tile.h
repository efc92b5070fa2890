// Transposition of one tile on the calling thread, for kernels that transpose what they have just written.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {

// next_rows: 0, or the rows down to the tile that comes next, whose lines are asked for meanwhile.
using TransposeTile = void (*)(const Transpose&, int64_t next_rows);

// For elements of 1, 2 or 4 bytes, under runtime::isa() of the calling thread; element_bytes of the argument is then
// not read.
TransposeTile transpose_tile(int64_t element_bytes);

}  // namespace plimsoll::kernels
