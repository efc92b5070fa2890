#include "tests/amx/tile_instruction.h"

#include <cstring>

namespace plimsoll::amx {
namespace {

// The general registers by their number in an encoding.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

struct Vex {
  int register_high, index_high, base_high;  // 8 or 0, added to three bits
  int second_source;
  int prefix;  // 0: none, 1: 66, 2: F3, 3: F2

  explicit Vex(const uint8_t* code)
      : register_high((code[1] & 0x80) == 0 ? 8 : 0),
        index_high((code[1] & 0x40) == 0 ? 8 : 0),
        base_high((code[1] & 0x20) == 0 ? 8 : 0),
        second_source(~(code[2] >> 3) & 0xf),
        prefix(code[2] & 3) {}
  // Opcode map 0F38, W and L zero.
  static bool is_tile_code(const uint8_t* code) {
    return code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x84) == 0;
  }
};

struct Memory {
  int64_t base = 0, index = 0;
  bool has_sib = false;
  int bytes = 0;  // of ModRM, SIB and displacement
};

std::optional<Memory> decode_memory(const uint8_t* modrm, const Vex& vex, const greg_t* registers) {
  const int mode = modrm[0] >> 6, low = modrm[0] & 7;
  Memory memory;
  const uint8_t* next = modrm + 1;
  int base = low;
  if (low == 4) {
    memory.has_sib = true;
    const int index = ((next[0] >> 3) & 7) + vex.index_high;
    if (index != 4) memory.index = registers[kRegisters[index]] << (next[0] >> 6);
    base = next[0] & 7;
    ++next;
  }
  if (mode == 3 || (mode == 0 && base == 5)) return std::nullopt;  // a register; relative to the next instruction
  memory.base = registers[kRegisters[base + vex.base_high]];
  if (mode == 1) {
    memory.base += static_cast<int8_t>(next[0]);
    next += 1;
  } else if (mode == 2) {
    int32_t displacement;
    std::memcpy(&displacement, next, sizeof(displacement));
    memory.base += displacement;
    next += sizeof(displacement);
  }
  memory.bytes = static_cast<int>(next - modrm);
  return memory;
}

// LDTILECFG may address relative to the next instruction, as position-independent code does.
std::optional<TileInstruction> decode_configuration(const uint8_t* code, const Vex& vex, const greg_t* registers) {
  const int mode = code[4] >> 6, reg = (code[4] >> 3) & 7, low = code[4] & 7;
  if (vex.prefix == 3 && mode == 3 && low == 0)
    return TileInstruction{.operation = TileOperation::kZero, .length = 5, .tile = reg + vex.register_high};
  if (vex.prefix != 0 || reg != 0) return std::nullopt;
  if (code[4] == 0xc0) return TileInstruction{.operation = TileOperation::kRelease, .length = 5};
  TileInstruction instruction{.operation = TileOperation::kLoadConfig};
  if (mode == 0 && low == 5) {
    int32_t displacement;
    std::memcpy(&displacement, code + 5, sizeof(displacement));
    instruction.length = 9;
    instruction.memory = const_cast<uint8_t*>(code) + instruction.length + displacement;
    return instruction;
  }
  const std::optional<Memory> memory = decode_memory(code + 4, vex, registers);
  if (!memory) return std::nullopt;
  instruction.length = 4 + memory->bytes;
  instruction.memory = reinterpret_cast<uint8_t*>(memory->base + memory->index);
  return instruction;
}

std::optional<TileInstruction> decode_move(const uint8_t* code, const Vex& vex, const greg_t* registers) {
  const std::optional<Memory> memory = decode_memory(code + 4, vex, registers);
  if (vex.prefix == 0 || !memory || !memory->has_sib) return std::nullopt;
  return TileInstruction{.operation = vex.prefix == 2 ? TileOperation::kStore : TileOperation::kLoad,
                         .length = 4 + memory->bytes,
                         .tile = ((code[4] >> 3) & 7) + vex.register_high,
                         .memory = reinterpret_cast<uint8_t*>(memory->base),
                         .row_stride = memory->index};
}

std::optional<TileInstruction> decode_multiply(const uint8_t* code, const Vex& vex) {
  if (vex.prefix != 2 || code[4] >> 6 != 3) return std::nullopt;
  return TileInstruction{.operation = TileOperation::kMultiplyBf16,
                         .length = 5,
                         .tile = ((code[4] >> 3) & 7) + vex.register_high,
                         .first = (code[4] & 7) + vex.base_high,
                         .second = vex.second_source};
}

}  // namespace

std::optional<TileInstruction> decode_tile_instruction(const uint8_t* code, const ucontext_t& context) {
  if (!Vex::is_tile_code(code)) return std::nullopt;
  const Vex vex(code);
  const greg_t* registers = context.uc_mcontext.gregs;
  switch (code[3]) {
    case 0x49:
      return decode_configuration(code, vex, registers);
    case 0x4b:
      return decode_move(code, vex, registers);
    case 0x5c:
      return decode_multiply(code, vex);
    default:
      return std::nullopt;
  }
}

}  // namespace plimsoll::amx
