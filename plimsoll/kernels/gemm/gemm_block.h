// The work of one thread: a rectangle of the output. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/gemm_far_scales.h"
#include "plimsoll/kernels/gemm/gemm_isa.h"
#include "plimsoll/kernels/gemm/gemm_plan.h"
#include "plimsoll/kernels/shared_amax.h"

namespace plimsoll::kernels {

// State that all threads of one product share.
struct Product {
  const Gemm& gemm;
  const GemmIsa& isa;
  int64_t block_panels;  // of A at a time
  KBlocks k_blocks;
  Dword dword;   // that is multiplied
  Dword stored;  // of B packed beforehand
  int64_t row_panels;
  bool few;                   // multiply_few_rows() takes them, and B as it is
  const float* row_scale;     // [m], alpha included
  const float* column_scale;  // [n]
  float* column_partial;      // [row_panels, n] or nullptr
  float* tiles;               // of all row panels for each panel of B at hand, where k comes in parts; or nullptr
  FarScales far_scales;
  SharedAmax amax = {};

  int64_t rows_in(int64_t row_panel) const;
  int64_t a_panel_dwords(int64_t k) const { return isa.a_panel_dwords(k, dword); }
  void pack_a(Range row_panels, Range k, uint32_t* to) const;
  void pack_rows(uint32_t* to, int64_t stride) const;  // all of A
  void finish_tile(int64_t row_panel, int64_t column_panel, float* tile);
};

// Some of the columns of B, packed: panel `first_panel` and k `first_k` are the first in `layout`. Where they are not
// packed as they are multiplied, each thread decodes or packs a panel just before that.
struct ColumnChunk {
  Range panels, k_blocks;
  const uint32_t* packed = nullptr;
  PackedLayout layout;
  int64_t first_panel = 0, first_k = 0;
  bool is_stored = false;  // packed by the caller, beforehand

  const uint32_t* at(int64_t k_begin, int64_t panel) const {
    return packed + layout.offset(k_begin - first_k, panel - first_panel);
  }
};

// Packs panels of B from one block of k, panel_stride dwords apart.
struct PackColumns {
  Range panels, k;
  Dword dword = Dword::kFp32;
  uint32_t* to = nullptr;
  int64_t panel_stride = 0;
  BPlaces places = {};
};
void pack_columns(const GemmOperand& b, int64_t n, int64_t k, const GemmIsa& isa, const PackColumns& args);

// Row panels times column panels in the chunk's blocks of k, the epilogue behind the last of all. Unless chunk is packed as
// it is multiplied, at most block_panels row panels.
void multiply_rectangle(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels);

// All row panels, at most kFewPanels, times column panels: each panel of B is read once, from its first k to its last.
void multiply_few_rows(Product& product, const ColumnChunk& chunk, Range column_panels);

}  // namespace plimsoll::kernels
