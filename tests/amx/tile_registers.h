// The eight tiles of a thread and what instructions do to them.
#pragma once

#include <cstdint>

#include "tests/amx/tile_instruction.h"

namespace plimsoll::amx {

class TileRegisters {
 public:
  // False where the processor would raise an exception.
  bool execute(const TileInstruction& instruction);
  static inline bool wrong = false;  // products leave out the second of each pair
  bool configured() const { return configured_; }

 private:
  struct Tile {
    alignas(64) uint32_t dwords[16][16] = {};
    int rows = 0, row_bytes = 0;
  };

  bool load_config(const uint8_t* config);
  bool is_valid(int tile) const { return configured_ && tile < 8 && tiles_[tile].rows > 0; }
  void load(Tile& tile, const uint8_t* memory, int64_t stride);
  bool multiply(const TileInstruction& instruction);

  bool configured_ = false;
  Tile tiles_[8];
};

}  // namespace plimsoll::amx
