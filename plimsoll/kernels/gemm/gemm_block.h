// The work of one thread: a rectangle of the output. Private to this folder.
#pragma once

#include <atomic>
#include <cstdint>

#include "plimsoll/kernels/gemm/gemm_isa.h"
#include "plimsoll/kernels/gemm/gemm_plan.h"

namespace plimsoll::kernels {

// What all threads of one product share.
struct Product {
  const Gemm& gemm;
  const GemmIsa& isa;
  KBlocks k_blocks;
  Dword dword;
  int64_t row_panels;
  const float* row_scale;        // [m], alpha included
  const float* column_scale;     // [n]
  float* column_partial;         // [row_panels, n] or nullptr
  std::atomic<int32_t> amax{0};  // FP32 bits

  void raise_amax(int32_t bits);
};

// Some of the columns of B, packed: panel `first_panel` is the first in `layout`. Without `packed`, each thread packs a
// panel just before it multiplies with it.
struct ColumnChunk {
  Range panels;
  const uint32_t* packed = nullptr;
  PackedLayout layout;
  int64_t first_panel = 0;
};

// Packs panels of B for one block of k, those that follow `panels.begin` at their places after `to`.
void pack_b_panels(const GemmOperand& b, int64_t n, Range panels, const KBlocks& k_blocks, int64_t k_block, Dword dword,
                   const GemmIsa& isa, uint32_t* to);

// Row panels times column panels, epilogue included. Without chunk.packed, at most kBlockPanels row panels.
void multiply_rectangle(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels);

}  // namespace plimsoll::kernels
