#include <immintrin.h>

#include "plimsoll/runtime/tile_check.h"
#include "plimsoll/runtime/tile_config.h"

namespace plimsoll::runtime {

void multiply_tile_amx(const TilePairs& args) {
  __asm__ volatile("" : : : "memory");  // GCC does not know what tile loads read
  _tile_loadconfig(&kFullTiles);
  _tile_loadd(0, args.sum, 64);
  _tile_loadd(1, args.a, 64);
  _tile_loadd(2, args.b, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, args.sum, 64);
  _tile_release();
}

}  // namespace plimsoll::runtime
