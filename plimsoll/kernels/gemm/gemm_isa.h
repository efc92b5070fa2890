// What each instruction set supplies to the driver, on panels of one geometry:
//   an A panel is [k dword][16], panel_rows of the 16 used; a B panel is [k dword][32]; a tile of output is [rows][32]
//   FP32. A dword is one FP32 value, or two consecutive k as BF16, so one driver serves every format.
// Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/gemm.h"

namespace plimsoll::kernels {

inline constexpr int64_t kAPitch = 16, kBPitch = 32, kTileColumns = 32;

enum class Dword : uint8_t {
  kFp32,      // any operand: decoding to FP32 is exact
  kBf16Pair,  // operands that BF16 holds exactly; an odd last k is paired with zero
};

static constexpr int64_t dwords_of(int64_t k, Dword dword) { return dword == Dword::kFp32 ? k : (k + 1) / 2; }

// Panels of `rows_per_panel` rows of an operand, decoded, the scales that vary along k folded in if `fold_scale`.
struct PackPanels {
  const GemmOperand* operand = nullptr;
  int64_t row_begin = 0, row_end = 0;  // rows of the operand that fill the panels
  int64_t readable_end = 0;            // all rows of the operand
  int64_t k_begin = 0, k_end = 0;      // k_begin is a multiple of 16
  bool fold_scale = false;
  Dword dword = Dword::kFp32;
  uint32_t* panels = nullptr;
  int64_t panel_stride = 0;  // dwords
};

// tile = A panel x B panel, or tile += ... with the tile as the start of each chain.
struct TileProduct {
  int64_t k_dwords = 0;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  float* tile = nullptr;
  int64_t rows = 0;
  bool carry = false;
  const char* prefetch = nullptr;  // of the B panel that comes next, prefetch_step bytes per k dword
  int64_t prefetch_step = 0;
};

struct TileEpilogue {
  const Gemm* gemm = nullptr;
  const float* row_scale = nullptr;                    // [m], alpha included
  const float* column_scale = nullptr;                 // [n]
  float* tile = nullptr;                               // overwritten
  int64_t row = 0, rows = 0, column = 0, columns = 0;  // of the output
  float* column_partial = nullptr;                     // [columns], sum over these rows, or nullptr
};

struct GemmIsa {
  int64_t panel_rows;
  void (*pack_a)(const PackPanels&);
  void (*pack_b)(const PackPanels&);
  void (*multiply)(const TileProduct&);        // Dword::kFp32
  void (*multiply_pairs)(const TileProduct&);  // Dword::kBf16Pair; nullptr where there is none
  int32_t (*finish)(const TileEpilogue&);      // returns the amax of the tile as FP32 bits
};

extern const GemmIsa kGemmPortable, kGemmAvx2, kGemmAvx512;

void multiply_pairs_avx512_bf16(const TileProduct&);

}  // namespace plimsoll::kernels
