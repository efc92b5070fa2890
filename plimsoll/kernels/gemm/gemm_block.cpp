#include "plimsoll/kernels/gemm/gemm_block.h"

#include <algorithm>

#include "plimsoll/kernels/gemm/scale_at.h"
#include "plimsoll/runtime/scratch.h"

namespace plimsoll::kernels {
namespace {

using runtime::ScratchSlot;

class BlockMultiplier {
 public:
  BlockMultiplier(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels)
      : product_(product), chunk_(chunk), rows_(row_panels), columns_(column_panels) {
    const int64_t longest = dwords_of(product.k_blocks.length, product.dword);
    const int64_t a_dwords = kBlockPanels * longest * kAPitch;
    const int64_t b_dwords = chunk.packed == nullptr ? longest * kBPitch : 0;
    a_ = scratch<uint32_t>(ScratchSlot::kGemmA, a_dwords + b_dwords);
    b_ = a_ + a_dwords;
    // With one k block a tile is finished at once and reused; else all of them wait for the last block.
    tile_size_ = product.isa.panel_rows * kTileColumns;
    const int64_t tiles = product.k_blocks.count == 1 ? 1 : kBlockPanels * columns_.size();
    tiles_ = scratch<float>(ScratchSlot::kGemmTile, tiles * tile_size_);
  }

  void run() {
    const int64_t blocks = divide_up(rows_.size(), kBlockPanels);
    for (int64_t block = 0; block < blocks; ++block) {
      const Range part = part_of(rows_.size(), block, blocks);
      block_rows_ = {rows_.begin + part.begin, rows_.begin + part.end};
      for (int64_t k_block = 0; k_block < product_.k_blocks.count; ++k_block) multiply_k_block(k_block);
    }
  }

 private:
  template <class T>
  static T* scratch(ScratchSlot slot, int64_t count) {
    return static_cast<T*>(runtime::scratch(slot, static_cast<size_t>(count) * sizeof(T)));
  }

  void multiply_k_block(int64_t k_block) {
    k_dwords_ = dwords_of(product_.k_blocks.block(k_block).size(), product_.dword);
    pack_a(product_.k_blocks.block(k_block));
    for (int64_t column = columns_.begin; column < columns_.end; ++column) {
      const uint32_t* b = b_panel(k_block, column);
      for (int64_t row = block_rows_.begin; row < block_rows_.end; ++row) {
        float* tile = tile_at(row, column);
        multiply_tile(k_block, row, b, tile);
        if (k_block + 1 == product_.k_blocks.count) finish_tile(row, column, tile);
      }
    }
  }

  void pack_a(Range k) {
    const Gemm& gemm = product_.gemm;
    const int64_t panel_rows = product_.isa.panel_rows;
    product_.isa.pack_a({.operand = &gemm.a,
                         .row_begin = block_rows_.begin * panel_rows,
                         .row_end = std::min(block_rows_.end * panel_rows, gemm.m),
                         .readable_end = gemm.m,
                         .k_begin = k.begin,
                         .k_end = k.end,
                         .fold_scale = varies_along_k(gemm.a.scale, gemm.k),
                         .dword = product_.dword,
                         .panels = a_,
                         .panel_stride = k_dwords_ * kAPitch});
  }

  const uint32_t* b_panel(int64_t k_block, int64_t column) {
    if (chunk_.packed != nullptr) return chunk_.packed + chunk_.layout.offset(k_block, column - chunk_.first_panel);
    const Gemm& gemm = product_.gemm;
    pack_b_panels(gemm.b, gemm.n, {column, column + 1}, product_.k_blocks, k_block, product_.dword, product_.isa, b_);
    return b_;
  }

  float* tile_at(int64_t row_panel, int64_t column_panel) const {
    if (product_.k_blocks.count == 1) return tiles_;
    const int64_t column = column_panel - columns_.begin, row = row_panel - block_rows_.begin;
    return tiles_ + (column * block_rows_.size() + row) * tile_size_;
  }

  int64_t rows_in(int64_t row_panel) const {
    return std::min(product_.isa.panel_rows, product_.gemm.m - row_panel * product_.isa.panel_rows);
  }

  void multiply_tile(int64_t k_block, int64_t row_panel, const uint32_t* b, float* tile) const {
    const int64_t index = row_panel - block_rows_.begin;
    // While B panels follow each other in memory, each row panel brings its share of the next one nearer.
    const int64_t step = chunk_.packed == nullptr ? 0 : divide_up(kBPitch * 4, block_rows_.size());
    const int64_t ahead = chunk_.packed == nullptr ? 0 : k_dwords_ * (kBPitch * 4 + index * step);
    const TileProduct args = {.k_dwords = k_dwords_,
                              .a = a_ + index * k_dwords_ * kAPitch,
                              .b = b,
                              .tile = tile,
                              .rows = rows_in(row_panel),
                              .carry = k_block > 0,
                              .prefetch = reinterpret_cast<const char*>(b) + ahead,
                              .prefetch_step = step};
    (product_.dword == Dword::kFp32 ? product_.isa.multiply : product_.isa.multiply_pairs)(args);
  }

  void finish_tile(int64_t row_panel, int64_t column_panel, float* tile) {
    const Gemm& gemm = product_.gemm;
    const int64_t column = column_panel * kTileColumns;
    float* partial = product_.column_partial;
    product_.raise_amax(
        product_.isa.finish({.gemm = &gemm,
                             .row_scale = product_.row_scale,
                             .column_scale = product_.column_scale,
                             .tile = tile,
                             .row = row_panel * product_.isa.panel_rows,
                             .rows = rows_in(row_panel),
                             .column = column,
                             .columns = std::min(kTileColumns, gemm.n - column),
                             .column_partial = partial == nullptr ? nullptr : partial + row_panel * gemm.n + column}));
  }

  Product& product_;
  const ColumnChunk& chunk_;
  Range rows_, columns_, block_rows_;
  int64_t k_dwords_ = 0, tile_size_ = 0;
  uint32_t* a_ = nullptr;
  uint32_t* b_ = nullptr;
  float* tiles_ = nullptr;
};

}  // namespace

void Product::raise_amax(int32_t bits) {
  int32_t seen = amax.load(std::memory_order_relaxed);
  while (seen < bits && !amax.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
  }
}

void pack_b_panels(const GemmOperand& b, int64_t n, Range panels, const KBlocks& k_blocks, int64_t k_block, Dword dword,
                   const GemmIsa& isa, uint32_t* to) {
  const Range k = k_blocks.block(k_block);
  isa.pack_b({.operand = &b,
              .row_begin = panels.begin * kTileColumns,
              .row_end = std::min(panels.end * kTileColumns, n),
              .readable_end = n,
              .k_begin = k.begin,
              .k_end = k.end,
              .fold_scale = varies_along_k(b.scale, k_blocks.k),
              .dword = dword,
              .panels = to,
              .panel_stride = dwords_of(k.size(), dword) * kBPitch});
}

void multiply_rectangle(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels) {
  BlockMultiplier(product, chunk, row_panels, column_panels).run();
}

}  // namespace plimsoll::kernels
