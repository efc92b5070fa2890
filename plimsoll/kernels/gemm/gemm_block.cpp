#include "plimsoll/kernels/gemm/gemm_block.h"

#include <algorithm>

#include "plimsoll/runtime/scratch.h"

namespace plimsoll::kernels {
namespace {

using runtime::ScratchSlot;

class BlockMultiplier {
 public:
  BlockMultiplier(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels)
      : product_(product),
        chunk_(chunk),
        is_ready_(chunk.packed != nullptr && chunk.layout.dword == product.dword),
        rows_(row_panels),
        columns_(column_panels) {
    const int64_t longest = dwords_of(product.k_blocks.length, product.dword);
    const int64_t a_dwords = product.block_panels * product.a_panel_dwords(product.k_blocks.length);
    a_ = scratch<uint32_t>(ScratchSlot::kGemmA, a_dwords + (is_ready_ ? 0 : longest * kBPitch));
    b_ = a_ + a_dwords;
    tile_size_ = product.isa.panel_rows * kTileColumns;
    if (product.tiles != nullptr) return;
    // With one k block a tile is finished at once and reused; else all of them wait for the last block.
    const int64_t tiles = product.k_blocks.count == 1 ? 1 : product.block_panels * columns_.size();
    tiles_ = scratch<float>(ScratchSlot::kGemmTile, tiles * tile_size_);
  }

  void run() {
    const int64_t blocks = divide_up(rows_.size(), product_.block_panels);
    for (int64_t block = 0; block < blocks; ++block) {
      const Range part = part_of(rows_.size(), block, blocks);
      block_rows_ = {rows_.begin + part.begin, rows_.begin + part.end};
      const Range k_blocks = chunk_.k_blocks;
      for (int64_t k_block = k_blocks.begin; k_block < k_blocks.end; ++k_block) multiply_k_block(k_block);
    }
  }

 private:
  template <class T>
  static T* scratch(ScratchSlot slot, int64_t count) {
    return static_cast<T*>(runtime::scratch(slot, static_cast<size_t>(count) * sizeof(T)));
  }

  void multiply_k_block(int64_t k_block) {
    k_ = product_.k_blocks.block(k_block);
    k_dwords_ = dwords_of(k_.size(), product_.dword);
    is_last_ = k_block + 1 == product_.k_blocks.count;
    places_ = is_ready_ && chunk_.is_stored ? BPlaces{} : places_of(product_.isa, k_.size());
    product_.pack_a(block_rows_, k_, a_);
    for (int64_t column = columns_.begin; column < columns_.end; ++column) {
      const uint32_t* b = b_panel(column);
      for (int64_t row = block_rows_.begin; row < block_rows_.end; ++row) {
        float* tile = tile_at(row, column);
        multiply_tile(row, column, b, tile);
        if (is_last_) product_.finish_tile(row, column, tile);
      }
    }
  }

  const uint32_t* b_panel(int64_t column) {
    if (is_ready_) return chunk_.at(k_.begin, column);
    if (chunk_.packed != nullptr) {
      product_.isa.expand({.k = k_.size(),
                           .stored = chunk_.layout.dword,
                           .dword = product_.dword,
                           .from = chunk_.at(k_.begin, column),
                           .to = b_,
                           .places = places_});
    } else {
      const Gemm& gemm = product_.gemm;
      pack_columns(gemm.b, gemm.n, gemm.k, product_.isa,
                   {.panels = {column, column + 1}, .k = k_, .dword = product_.dword, .to = b_, .places = places_});
    }
    return b_;
  }

  float* tile_at(int64_t row_panel, int64_t column_panel) const {
    if (product_.tiles != nullptr) {
      return product_.tiles + ((column_panel - chunk_.panels.begin) * product_.row_panels + row_panel) * tile_size_;
    }
    if (product_.k_blocks.count == 1) return tiles_;
    const int64_t column = column_panel - columns_.begin, row = row_panel - block_rows_.begin;
    return tiles_ + (column * block_rows_.size() + row) * tile_size_;
  }

  // The place of the tile in a matrix beside it, with row stride and element in that matrix's units.
  RowBytes bytes_at(const void* base, int64_t stride, format::Format format, int64_t row_panel,
                    int64_t column_panel) const {
    if (base == nullptr) return {};
    const int64_t size = format::bytes(format), row = row_panel * product_.isa.panel_rows,
                  column = column_panel * kTileColumns;
    return {static_cast<const char*>(base) + (row * stride + column) * size, stride * size,
            std::min(kTileColumns, product_.gemm.n - column) * size};
  }

  void multiply_tile(int64_t row_panel, int64_t column_panel, const uint32_t* b, float* tile) const {
    const int64_t index = row_panel - block_rows_.begin;
    // Each row panel brings its share of the next B panel nearer, as it is stored.
    const bool is_stored = chunk_.packed != nullptr;
    const int64_t bytes = is_stored ? panel_dwords_of(k_.size(), chunk_.layout.dword) * 4 : 0;
    const int64_t step = divide_up(bytes, std::max<int64_t>(block_rows_.size() * k_dwords_, 1));
    const char* next = is_stored ? reinterpret_cast<const char*>(chunk_.at(k_.begin, column_panel)) +
                                       chunk_.layout.panel_dwords() * 4 + index * step * k_dwords_
                                 : reinterpret_cast<const char*>(b);
    const Gemm& gemm = product_.gemm;
    TileProduct args = {.k_dwords = k_dwords_,
                        .a = a_ + index * product_.a_panel_dwords(k_.size()),
                        .b = b,
                        .b_places = places_,
                        .tile = tile,
                        .rows = product_.rows_in(row_panel),
                        .half_empty = gemm.n - column_panel * kTileColumns <= kTileColumns / 2,
                        .carry = k_.begin > 0,
                        .prefetch = next,
                        .prefetch_step = step};
    if (is_last_) {
      const GemmEpilogue& epilogue = gemm.epilogue;
      args.next[0] = bytes_at(gemm.output, gemm.output_stride, gemm.output_format, row_panel, column_panel);
      args.next[1] = bytes_at(epilogue.aux, epilogue.aux_stride, epilogue.aux_format, row_panel, column_panel);
    } else {
      args.next[0] = {reinterpret_cast<const char*>(tile + tile_size_), kTileColumns * 4, kTileColumns * 4};
    }
    product_.isa.multiply(args);
  }

  Product& product_;
  const ColumnChunk& chunk_;
  const bool is_ready_;
  Range rows_, columns_, block_rows_, k_;
  BPlaces places_;
  bool is_last_ = false;
  int64_t k_dwords_ = 0, tile_size_ = 0;
  uint32_t* a_ = nullptr;
  uint32_t* b_ = nullptr;
  float* tiles_ = nullptr;
};

}  // namespace

void multiply_rectangle(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels) {
  BlockMultiplier(product, chunk, row_panels, column_panels).run();
}

}  // namespace plimsoll::kernels
