// AMX's tile instructions on a processor that has none. Each raises SIGILL there; the handler does what the Intel SDM
// says of it and goes on behind it. So the kernels' own machine code runs, in the whole program and on all its threads,
// some thousand times slower. What the SDM forbids (a product of tiles of other sizes, no configuration) ends the
// process.
#pragma once

#include <cstdint>

namespace plimsoll::amx {

// False where there is no AVX-512, or where the processor has tiles itself.
bool can_emulate_tiles();

// From now on, for the whole process.
void emulate_tiles();

// While true, products leave out the second of each pair.
void set_products_wrong(bool wrong);

struct TileCounts {
  int64_t products = 0;    // TDPBF16PS so far
  int64_t configured = 0;  // threads that hold tiles now
};
TileCounts tile_counts();

}  // namespace plimsoll::amx
