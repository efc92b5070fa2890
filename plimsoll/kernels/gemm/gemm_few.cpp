// Few rows: B is what takes time, so it passes by once, and all of A is packed beforehand.
#include <algorithm>

#include "plimsoll/kernels/gemm/gemm_block.h"
#include "plimsoll/kernels/gemm/gemm_driver.h"
#include "plimsoll/runtime/scratch.h"

namespace plimsoll::kernels {
namespace {

// Dwords along k of B made at a time: with 32 columns 16 KiB, half of the smallest L1.
constexpr int64_t kDepth = 128;

class FewRows {
 public:
  FewRows(Product& product, const ColumnChunk& chunk)
      : product_(product),
        chunk_(chunk),
        stored_(stored_dword_of(product.gemm.b, product.gemm.k, product.isa)),
        as_stored_(product.gemm.m <= product.isa.few_rows) {
    const int64_t a_dwords = product.row_panels * a_panel_dwords(), b_dwords = kDepth * kBPitch;
    a_ = static_cast<uint32_t*>(
        runtime::scratch(runtime::ScratchSlot::kGemmA, static_cast<size_t>(a_dwords + b_dwords) * sizeof(uint32_t)));
    b_ = a_ + a_dwords;
    tile_size_ = product.isa.panel_rows * kTileColumns;
    tiles_ = static_cast<float*>(runtime::scratch(
        runtime::ScratchSlot::kGemmTile, static_cast<size_t>(product.row_panels * tile_size_) * sizeof(float)));
    product.pack_a({0, product.row_panels}, {0, product.gemm.k}, a_);
  }

  void multiply(int64_t column) {
    const int64_t depth = !as_stored_                ? kDepth
                          : chunk_.packed != nullptr ? std::max<int64_t>(product_.gemm.k, 1)
                                                     : kDepth * depth_of(stored_);
    int64_t k = 0;
    do {
      const Range part = {k, std::min(k + depth, product_.gemm.k)};
      if (as_stored_) {
        multiply_as_stored(column, part);
      } else {
        multiply_tiles(column, part);
      }
      k += depth;
    } while (k < product_.gemm.k);
    for (int64_t row = 0; row < product_.row_panels; ++row) product_.finish_tile(row, column, tile(row));
  }

 private:
  int64_t a_panel_dwords() const { return dwords_of(product_.gemm.k, product_.dword) * kAPitch; }
  const uint32_t* a_panel(int64_t row_panel, int64_t k) const {
    return a_ + row_panel * a_panel_dwords() + dwords_of(k, product_.dword) * kAPitch;
  }
  float* tile(int64_t row_panel) const { return tiles_ + row_panel * tile_size_; }

  void multiply_as_stored(int64_t column, Range k) const {
    product_.multiply_few({.k = k.size(),
                           .stored = stored_,
                           .a = a_panel(0, k.begin),
                           .b = chunk_.packed != nullptr ? chunk_.at(k.begin, column) : pack(column, k, stored_),
                           .tile = tile(0),
                           .rows = product_.gemm.m,
                           .carry = k.begin > 0});
  }

  void multiply_tiles(int64_t column, Range k) const {
    const uint32_t* b = chunk_.packed == nullptr    ? pack(column, k, product_.dword)
                        : stored_ == product_.dword ? chunk_.at(k.begin, column)
                                                    : expand(column, k);
    for (int64_t row = 0; row < product_.row_panels; ++row) {
      product_.multiply_tile({.k_dwords = dwords_of(k.size(), product_.dword),
                              .a = a_panel(row, k.begin),
                              .b = b,
                              .tile = tile(row),
                              .rows = product_.rows_in(row),
                              .carry = k.begin > 0,
                              .prefetch = reinterpret_cast<const char*>(b + kDepth * kBPitch),
                              .prefetch_step = kBPitch * 4});
    }
  }

  const uint32_t* pack(int64_t column, Range k, Dword dword) const {
    const Gemm& gemm = product_.gemm;
    pack_columns(gemm.b, gemm.n, gemm.k, product_.isa,
                 {.panels = {column, column + 1}, .k = k, .dword = dword, .to = b_});
    return b_;
  }

  const uint32_t* expand(int64_t column, Range k) const {
    product_.isa.expand(
        {.k = k.size(), .stored = stored_, .dword = product_.dword, .from = chunk_.at(k.begin, column), .to = b_});
    return b_;
  }

  Product& product_;
  const ColumnChunk& chunk_;
  const Dword stored_;
  const bool as_stored_;
  int64_t tile_size_ = 0;
  uint32_t* a_ = nullptr;
  uint32_t* b_ = nullptr;
  float* tiles_ = nullptr;
};

}  // namespace

void multiply_few_rows(Product& product, const ColumnChunk& chunk, Range column_panels) {
  FewRows rows(product, chunk);
  for (int64_t column = column_panels.begin; column < column_panels.end; ++column) rows.multiply(column);
}

}  // namespace plimsoll::kernels
