#include <immintrin.h>

#include "plimsoll/kernels/limits/limits_isa.h"
#include "plimsoll/runtime/tile_config.h"

namespace plimsoll::kernels {
namespace {

// Two tiles of BF16 between 1 and 2 and their negatives, so that sums stay small.
struct alignas(64) Operands {
  uint16_t values[2][512] = {};

  constexpr Operands() {
    uint32_t random = 1;
    for (auto& tile : values) {
      for (uint16_t& value : tile) {
        random = random * 1664525u + 1013904223u;
        value = static_cast<uint16_t>(0x3f80u | (random >> 24 & 0x7fu) | (random >> 31 << 15));
      }
    }
  }
};
constexpr Operands kOperands;

}  // namespace

// Operands are loaded: tiles that LDTILECFG had zeroed were multiplied at full speed while another program on the core slowed all others.
int64_t multiply_tiles_amx(int64_t count) {
  _tile_loadconfig(&runtime::kFullTiles);  // which zeroes the sums
  _tile_loadd(4, kOperands.values[0], 64);
  _tile_loadd(5, kOperands.values[1], 64);
  _tile_loadd(6, kOperands.values[1], 64);
  _tile_loadd(7, kOperands.values[0], 64);
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
