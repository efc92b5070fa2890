#include <immintrin.h>

#include "plimsoll/kernels/limits/limits_isa.h"
#include "plimsoll/runtime/tile_config.h"

namespace plimsoll::kernels {

int64_t multiply_tiles_amx(int64_t count) {
  _tile_loadconfig(&runtime::kFullTiles);  // which zeroes them
  for (int64_t i = 0; i < count; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4 * 16 * 16 * 32 * 2;
}

}  // namespace plimsoll::kernels
