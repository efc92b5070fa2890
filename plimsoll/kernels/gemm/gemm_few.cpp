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
        stored_(product.stored),
        as_stored_(product.gemm.m <= product.isa.few_rows && stored_ != Dword::kFp16Split) {
    const int64_t a_dwords = product.row_panels * product.a_panel_dwords(product.gemm.k), b_dwords = kDepth * kBPitch;
    a_ = static_cast<uint32_t*>(
        runtime::scratch(runtime::ScratchSlot::kGemmA, static_cast<size_t>(a_dwords + b_dwords) * sizeof(uint32_t)));
    b_ = a_ + a_dwords;
    tile_size_ = product.isa.panel_rows * kTileColumns;
    const int64_t tiles = std::max<int64_t>(product.row_panels, 2);
    tiles_ = static_cast<float*>(
        runtime::scratch(runtime::ScratchSlot::kGemmTile, static_cast<size_t>(tiles * tile_size_) * sizeof(float)));
    product.pack_a({0, product.row_panels}, {0, product.gemm.k}, a_);
  }

  void multiply(Range columns) {
    const bool whole = as_stored_ && chunk_.packed != nullptr;
    const int64_t step = whole && product_.gemm.m <= kRowsOfTwoPanels ? 2 : 1;
    for (int64_t column = columns.begin; column < columns.end; column += step) {
      const int64_t count = std::min(step, columns.end - column);
      if (whole) {
        multiply_as_stored(column, count);
      } else {
        multiply_parts(column);
      }
      for (int64_t row = 0; row < product_.row_panels; ++row) {
        for (int64_t i = 0; i < count; ++i) product_.finish_tile(row, column + i, tile(row + i));
      }
    }
  }

 private:
  const uint32_t* a_panel(int64_t row_panel, int64_t k) const {
    return a_ + row_panel * product_.a_panel_dwords(product_.gemm.k) + product_.a_panel_dwords(k);
  }
  // The tile of a row panel; for the few rows of multiply_few, of the first or second panel of B.
  float* tile(int64_t index) const { return tiles_ + index * tile_size_; }

  void multiply_as_stored(int64_t column, int64_t count) const {
    product_.isa.multiply_few({.k = product_.gemm.k,
                               .stored = stored_,
                               .a = a_panel(0, 0),
                               .b = {chunk_.at(0, column), count == 2 ? chunk_.at(0, column + 1) : nullptr},
                               .tile = {tile(0), tile(1)},
                               .rows = product_.gemm.m});
  }

  // A panel made a part of k at a time.
  void multiply_parts(int64_t column) const {
    const int64_t depth = as_stored_ ? kDepth * depth_of(stored_) : kDepth;
    int64_t k = 0;
    do {
      const Range part = {k, std::min(k + depth, product_.gemm.k)};
      if (as_stored_) {
        product_.isa.multiply_few({.k = part.size(),
                                   .stored = stored_,
                                   .a = a_panel(0, k),
                                   .b = {pack(column, part, stored_)},
                                   .tile = {tile(0)},
                                   .rows = product_.gemm.m,
                                   .carry = k > 0});
      } else {
        multiply_tiles(column, part);
      }
      k += depth;
    } while (k < product_.gemm.k);
  }

  void multiply_tiles(int64_t column, Range k) const {
    const uint32_t* b = chunk_.packed == nullptr    ? pack(column, k, product_.dword)
                        : stored_ == product_.dword ? chunk_.at(k.begin, column)
                                                    : expand(column, k);
    for (int64_t row = 0; row < product_.row_panels; ++row) {
      product_.isa.multiply({.k_dwords = dwords_of(k.size(), product_.dword),
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
  FewRows(product, chunk).multiply(column_panels);
}

}  // namespace plimsoll::kernels
