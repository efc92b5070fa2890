// The configuration of AMX tiles (Intel SDM vol. 1, 18.2), for LDTILECFG. Internal linkage, because ISA files use it.
#pragma once

#include <cstdint>

namespace plimsoll::runtime {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of tile 0, 1, ...; the palette has eight
  uint8_t rows[16] = {};
};

// All eight tiles 16 rows of 64 bytes: GCC drops stores that fill a configuration on the stack, this one is constant.
constexpr TileConfig kFullTiles = {.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                   .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

}  // namespace
}  // namespace plimsoll::runtime
