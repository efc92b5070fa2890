// The encodings of the tile instructions (Intel SDM vol. 2): three bytes of VEX, opcode, ModRM, and for memory SIB and
// displacement.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <optional>

namespace plimsoll::amx {

enum class TileOperation : uint8_t { kLoadConfig, kRelease, kZero, kLoad, kStore, kMultiplyBf16 };

struct TileInstruction {
  TileOperation operation = TileOperation::kRelease;
  int length = 0;             // bytes
  int tile = 0;               // loaded, stored, zeroed or added to
  int first = 0, second = 0;  // multiplied
  uint8_t* memory = nullptr;  // of row 0, or of the configuration
  int64_t row_stride = 0;     // bytes
};

// The instruction at `code` with the registers that `context` has; nothing if it is none of these.
std::optional<TileInstruction> decode_tile_instruction(const uint8_t* code, const ucontext_t& context);

}  // namespace plimsoll::amx
