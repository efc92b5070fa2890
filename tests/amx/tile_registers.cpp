// After "Intel 64 and IA-32 Architectures Software Developer's Manual", vol. 2, of each instruction.
#include "tests/amx/tile_registers.h"

#include <immintrin.h>

#include <cstring>

namespace plimsoll::amx {
namespace {

// Subnormals count as zero going in (bit 6) and coming out (bit 15), nearest even, no exceptions.
class FlushedToZero {
 public:
  FlushedToZero() : before_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushedToZero() { _mm_setcsr(before_); }
  FlushedToZero(const FlushedToZero&) = delete;
  FlushedToZero& operator=(const FlushedToZero&) = delete;

 private:
  unsigned before_;
};

__m512 first_of_pairs(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
__m512 second_of_pairs(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
}

}  // namespace

bool TileRegisters::load_config(const uint8_t* config) {
  if (config[0] == 0) {
    *this = {};
    return true;
  }
  if (config[0] != 1 || config[1] != 0) return false;  // no palette but 1; nothing here restarts in a tile's middle
  for (int i = 2; i < 64; ++i) {
    const bool reserved = i < 16 || (i >= 32 && i < 48) || i >= 56;
    if (reserved && config[i] != 0) return false;
  }
  *this = {};
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, config + 16 + 2 * i, sizeof(row_bytes));
    const int rows = config[48 + i];
    if (row_bytes > 64 || rows > 16 || (rows == 0) != (row_bytes == 0)) return false;
    tiles_[i].rows = rows;
    tiles_[i].row_bytes = row_bytes;
  }
  configured_ = true;
  return true;
}

void TileRegisters::load(Tile& tile, const uint8_t* memory, int64_t stride) {
  std::memset(tile.dwords, 0, sizeof(tile.dwords));
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.dwords[row], memory + row * stride, static_cast<size_t>(tile.row_bytes));
  }
}

bool TileRegisters::multiply(const TileInstruction& instruction) {
  const int first = instruction.first, second = instruction.second;
  if (!is_valid(instruction.tile) || !is_valid(first) || !is_valid(second)) return false;
  if (instruction.tile == first || instruction.tile == second || first == second) return false;
  Tile& sum = tiles_[instruction.tile];
  const Tile &a = tiles_[first], &b = tiles_[second];
  if (sum.rows != a.rows || sum.row_bytes != b.row_bytes || a.row_bytes != 4 * b.rows) return false;
  if (sum.row_bytes % 4 != 0) return false;
  const FlushedToZero flushed;
  for (int row = 0; row < sum.rows; ++row) {
    __m512 chain[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int k = 0; k < b.rows; ++k) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a.dwords[row][k])), y = _mm512_load_si512(b.dwords[k]);
      chain[0] = _mm512_fmadd_ps(first_of_pairs(x), first_of_pairs(y), chain[0]);
      chain[1] = _mm512_fmadd_ps(second_of_pairs(x), second_of_pairs(y), chain[1]);
    }
    const __m512 before = _mm512_castsi512_ps(_mm512_load_si512(sum.dwords[row]));
    const __mmask16 columns = static_cast<__mmask16>((1u << (sum.row_bytes / 4)) - 1);
    const __m512 after = _mm512_maskz_add_ps(columns, before, wrong ? chain[0] : _mm512_add_ps(chain[0], chain[1]));
    _mm512_store_si512(sum.dwords[row], _mm512_castps_si512(after));
  }
  return true;
}

bool TileRegisters::execute(const TileInstruction& instruction) {
  if (instruction.operation == TileOperation::kLoadConfig) return load_config(instruction.memory);
  if (instruction.operation == TileOperation::kRelease) {
    *this = {};
    return true;
  }
  if (instruction.operation == TileOperation::kMultiplyBf16) return multiply(instruction);
  if (!is_valid(instruction.tile)) return false;
  Tile& tile = tiles_[instruction.tile];
  if (instruction.operation == TileOperation::kZero) {
    std::memset(tile.dwords, 0, sizeof(tile.dwords));
    return true;
  }
  if (tile.row_bytes % 4 != 0) return false;
  if (instruction.operation == TileOperation::kLoad) {
    load(tile, instruction.memory, instruction.row_stride);
    return true;
  }
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(instruction.memory + row * instruction.row_stride, tile.dwords[row],
                static_cast<size_t>(tile.row_bytes));
  }
  return true;
}

}  // namespace plimsoll::amx
