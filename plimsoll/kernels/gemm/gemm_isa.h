// Functions that each instruction set supplies to the driver, on panels of one geometry:
//   an A panel is [k dword][16], panel_rows of the 16 used, or tiles of 16 rows x 16 k dwords (gemm_amx.cpp); a B panel
//   is [k dword][32], or, for kernels that multiply 16 columns at a time, [2][k dword][16] in each block of k; a tile of output is [rows][32] FP32. A dword is one value, or two or four consecutive k, so one
//   driver serves every format.
// Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/gemm/gemm_tiling.h"
#include "plimsoll/runtime/divide_up.h"

namespace plimsoll::kernels {

inline constexpr int64_t kAPitch = 16, kBPitch = 32, kTileColumns = 32;

// Contents of a dword. The first three are multiplied; B packed beforehand may be any of them.
enum class Dword : uint8_t {
  kFp32,       // any operand: decoding to FP32 is exact
  kBf16Pair,   // operands that BF16 holds exactly; what is missing after the last k is zero
  kFp16Split,  // an FP16 value as the sum of two BF16, exactly: fp16_split.h
  kFp16Pair,
  kE4m3Quad,
  kE5m2Quad,
  kE4m3Blocks,  // quads of codes whose FP32 scales lie between them, of blocks of a multiple of 64 k: panel_dwords_of
  kNvfp4Octet,  // E2M1 codes; their block scales lie between them, too
  kMxfp4Octet,
};

static constexpr bool is_octet(Dword dword) { return dword == Dword::kNvfp4Octet || dword == Dword::kMxfp4Octet; }

static constexpr int64_t depth_of(Dword dword) {
  switch (dword) {
    case Dword::kFp32:
    case Dword::kFp16Split:
      return 1;
    case Dword::kBf16Pair:
    case Dword::kFp16Pair:
      return 2;
    case Dword::kE4m3Quad:
    case Dword::kE5m2Quad:
    case Dword::kE4m3Blocks:
      return 4;
    case Dword::kNvfp4Octet:
    case Dword::kMxfp4Octet:
      break;
  }
  return 8;
}
static constexpr int64_t dwords_of(int64_t k, Dword dword) { return (k + depth_of(dword) - 1) / depth_of(dword); }

// A B panel with scales comes in groups of 64 k: first the scales of each column, of octets a byte for each block, of
// quads an FP32 number, then the dwords of k. The last group is as long as the others.
static constexpr int64_t kGroupDepth = 64, kGroupOctets = kGroupDepth / 8;
static constexpr bool has_groups(Dword dword) { return is_octet(dword) || dword == Dword::kE4m3Blocks; }
static constexpr int64_t octet_block(Dword dword) { return dword == Dword::kNvfp4Octet ? 16 : 32; }
static constexpr int64_t scale_dwords(Dword dword) {
  return is_octet(dword) ? kGroupDepth / octet_block(dword) * kBPitch / 4 : kBPitch;
}
static constexpr int64_t group_dwords(Dword dword) {
  return scale_dwords(dword) + dwords_of(kGroupDepth, dword) * kBPitch;
}

// Dwords of k of a B panel.
static constexpr int64_t panel_dwords_of(int64_t k, Dword dword) {
  if (!has_groups(dword)) return dwords_of(k, dword) * kBPitch;
  return (k + kGroupDepth - 1) / kGroupDepth * group_dwords(dword);
}

// Places of the dwords of a B panel, in dwords: from k to k, and from the first 16 columns to the others.
struct BPlaces {
  int64_t pitch = kBPitch, half = 16;
};

// Panels of rows_per_panel rows of an operand, decoded, the scales that vary along k folded in if `fold_scale`.
struct PackPanels {
  const GemmOperand* operand = nullptr;
  int64_t row_begin = 0, row_end = 0;  // rows of the operand that fill the panels
  int64_t readable_end = 0;            // all rows of the operand
  int64_t k_begin = 0, k_end = 0;      // k_begin is a multiple of 64
  bool fold_scale = false;             // only to kFp32 and kBf16Pair
  Dword dword = Dword::kFp32;
  uint32_t* panels = nullptr;
  int64_t panel_stride = 0;  // dwords
  BPlaces places = {};       // of B; others than the first only of kFp32
};

// A part of a B panel, stored in one kind of dword, in the kind that is multiplied. Writes whole stored dwords of quads
// and pairs: up to three k beyond the last.
struct ExpandPanel {
  int64_t k = 0;
  Dword stored = Dword::kFp32;
  Dword dword = Dword::kFp32;
  const uint32_t* from = nullptr;
  uint32_t* to = nullptr;
  BPlaces places = {};  // in `to`
};

// Rows of memory that a tile is loaded from or stored to, in bytes.
struct RowBytes {
  const char* data = nullptr;
  int64_t stride = 0;
  int64_t count = 0;  // of a row
};

// tile = A panel x B panel, or tile += ... with the tile as the start of each chain.
struct TileProduct {
  int64_t k_dwords = 0;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  BPlaces b_places = {};
  float* tile = nullptr;
  int64_t rows = 0;
  bool half_empty = false;  // only the first 16 columns of the tile are wanted
  bool carry = false;
  const char* prefetch = nullptr;  // of the B panel that comes next, prefetch_step bytes per k dword
  int64_t prefetch_step = 0;
  RowBytes next[2] = {};  // what is read or written after this product
};

// tile = rows of A x panels of B as it is stored, or tile += ...: for few rows, where B is read once and decoding would
// take longer than multiplying. At most kMostPanels panels, which lie one after the other.
inline constexpr int64_t kMostPanels = 4;
struct FewRowsProduct {
  int64_t k = 0;
  Dword stored = Dword::kFp32;
  const uint32_t* a = nullptr;  // [rows][a_stride]: the dwords of each row, what is missing after the last k is zero
  int64_t a_stride = 0;
  const uint32_t* b = nullptr;
  int64_t panels = 1, panel_stride = 0;  // dwords
  float* tile = nullptr;                 // [panels][rows][32], panels tile_stride apart
  int64_t tile_stride = 0;
  int64_t rows = 0;
  bool carry = false;
};

// tile = rows of A x columns of B as the caller has them, whose elements are multiplied as they are.
struct FewRowsOfColumns {
  const uint32_t* a = nullptr;  // as above
  int64_t a_stride = 0;
  const char* b = nullptr;                 // [columns][k]
  int64_t b_stride = 0, column_bytes = 0;  // bytes from column to column, and of one
  int64_t columns = 0;                     // at most kTileColumns
  float* tile = nullptr;                   // [rows][32]
  int64_t rows = 0;
};

// Panels that few rows are multiplied with at a time: a sum is a chain, and too few of them would wait.
static constexpr int64_t panels_together(int64_t rows) { return rows <= 2 ? kMostPanels : rows <= 4 ? 2 : 1; }

struct TileEpilogue {
  const Gemm* gemm = nullptr;
  const float* row_scale = nullptr;                    // [m], alpha included
  const float* column_scale = nullptr;                 // [n]
  float* tile = nullptr;                               // overwritten
  int64_t row = 0, rows = 0, column = 0, columns = 0;  // of the output
  float* column_partial = nullptr;                     // [columns], sum over these rows, or nullptr
};

// Multiply-adds below which a second thread costs more than it gains, done by vectors.
inline constexpr int64_t kThreadGrain = int64_t{1} << 19;

// The microkernels of one kind of dword, and what goes with their panels.
struct GemmIsa {
  int64_t panel_rows;
  int64_t few_rows;  // that multiply_few takes at most; 0 where there is none
  GemmTiling GemmTilings::*tiling = &GemmTilings::fp32;
  bool halves_b = false;      // its microkernel takes half a B panel at a time, which lies best by itself
  int64_t a_pitch = kAPitch;  // dwords of an A panel for each k dword
  int64_t a_step = 1;         // k dwords that A panels are rounded up to, with zeros
  int64_t thread_grain = kThreadGrain;
  void (*enter)() = nullptr;  // on each thread before it multiplies
  void (*leave)() = nullptr;  // and after
  void (*pack_a)(const PackPanels&);
  void (*pack_rows)(const PackPanels&);  // for multiply_few: to [row][k dword], panel_stride apart
  void (*pack_b)(const PackPanels&);
  void (*expand)(const ExpandPanel&);
  int32_t (*finish)(const TileEpilogue&);  // returns the amax of the tile as FP32 bits
  void (*multiply)(const TileProduct&);
  void (*multiply_few)(const FewRowsProduct&) = nullptr;
  void (*multiply_few_columns)(const FewRowsOfColumns&) = nullptr;  // where it does better than packing

  constexpr int64_t a_panel_dwords(int64_t k, Dword dword) const {
    return runtime::divide_up(dwords_of(k, dword), a_step) * a_step * a_pitch;
  }
};

// Kinds of dword that an instruction set multiplies. Operands of a narrow kind that it has no product for go to FP32.
struct GemmLevel {
  const GemmIsa* fp32;
  const GemmIsa* bf16_pair = nullptr;
  const GemmIsa* fp16_split = nullptr;
};

extern const GemmIsa kGemmPortable, kGemmAvx2, kGemmAvx512;

void multiply_pairs_avx512_bf16(const TileProduct&);
void multiply_few_pairs_avx512_bf16(const FewRowsProduct&);
void multiply_few_columns_avx512_bf16(const FewRowsOfColumns&);

// Panels of tiles: A of pairs and of split FP16, B of split FP16 (the others are AVX-512's).
void pack_a_tiles_avx512(const PackPanels&);
void pack_b_split_avx512(const PackPanels&);
void load_tiles_amx();
void release_tiles_amx();
void multiply_pairs_amx(const TileProduct&);
void multiply_split_amx(const TileProduct&);

}  // namespace plimsoll::kernels
