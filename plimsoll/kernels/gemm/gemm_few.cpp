// Few rows: B is what takes time, so it passes by once, and all of A is packed beforehand.
#include <algorithm>

#include "plimsoll/kernels/gemm/gemm_block.h"
#include "plimsoll/kernels/gemm/gemm_driver.h"
#include "plimsoll/runtime/scratch.h"

namespace plimsoll::kernels {
namespace {

// Dwords along k of B made at a time: with 32 columns 16 KiB, half of the smallest L1.
constexpr int64_t kPanelDepth = 128;

class FewRows {
 public:
  FewRows(Product& product, const ColumnChunk& chunk)
      : product_(product),
        chunk_(chunk),
        stored_(product.stored),
        as_stored_(product.gemm.m <= kMostParts * product.isa.few_rows && stored_ != Dword::kFp16Split),
        in_place_(as_stored_ && chunk.packed == nullptr && product.isa.multiply_few_columns != nullptr &&
                  is_multiplied_in_place(product)),
        parts_(as_stored_ ? divide_up(product.gemm.m, product.isa.few_rows) : 1),
        panels_(panels_together(divide_up(product.gemm.m, parts_))),
        a_stride_(divide_up(dwords_of(product.gemm.k, product.dword), kLineDwords) * kLineDwords + kLineDwords) {
    const int64_t panels_of_a = product.row_panels * product.a_panel_dwords(product.gemm.k);
    const int64_t a_dwords = as_stored_ ? product.gemm.m * a_stride_ : panels_of_a;
    const int64_t b_dwords = std::max(kPanelDepth * kBPitch, panel_dwords_of(kPanelDepth * depth_of(stored_), stored_));
    a_ = static_cast<uint32_t*>(
        runtime::scratch(runtime::ScratchSlot::kGemmA, static_cast<size_t>(a_dwords + b_dwords) * sizeof(uint32_t)));
    b_ = a_ + a_dwords;
    tile_size_ = product.isa.panel_rows * kTileColumns;
    const int64_t tiles = product.row_panels * (as_stored_ ? panels_ : 1);
    tiles_ = static_cast<float*>(
        runtime::scratch(runtime::ScratchSlot::kGemmTile, static_cast<size_t>(tiles * tile_size_) * sizeof(float)));
    if (as_stored_) {
      product.pack_rows(a_, a_stride_);
    } else {
      product.pack_a({0, product.row_panels}, {0, product.gemm.k}, a_);
    }
  }

  void multiply(Range columns) {
    const bool whole = as_stored_ && chunk_.packed != nullptr;
    const int64_t step = whole ? panels_ : 1;
    for (int64_t column = columns.begin; column < columns.end; column += step) {
      const int64_t count = std::min(step, columns.end - column);
      if (whole) {
        const PackedLayout& layout = chunk_.layout;
        multiply_as_stored({0, product_.gemm.k}, chunk_.at(0, column), count, layout.panel_dwords());
      } else if (in_place_) {
        multiply_in_place(column);
      } else {
        multiply_parts(column);
      }
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t row = 0; row < product_.row_panels; ++row) product_.finish_tile(row, column + i, tile(row, i));
      }
    }
  }

 private:
  static constexpr int64_t kMostParts = 2;    // of the rows, each of which reads B: the second from L2
  static constexpr int64_t kLineDwords = 16;  // rows of A are an odd number of lines apart where k is a power of two

  const uint32_t* a_panel(int64_t row_panel, int64_t k) const {
    return a_ + row_panel * product_.a_panel_dwords(product_.gemm.k) + product_.a_panel_dwords(k);
  }
  // The tile of a row panel and of one of the panels of B at hand.
  float* tile(int64_t row_panel, int64_t panel) const {
    return tiles_ + (panel * product_.row_panels + row_panel) * tile_size_;
  }

  void multiply_as_stored(Range k, const uint32_t* b, int64_t panels, int64_t panel_stride) const {
    for (int64_t part = 0; part < parts_; ++part) {
      const Range rows = part_of(product_.gemm.m, part, parts_);
      product_.isa.multiply_few({.k = k.size(),
                                 .stored = stored_,
                                 .a = a_ + rows.begin * a_stride_ + dwords_of(k.begin, product_.dword),
                                 .a_stride = a_stride_,
                                 .b = b,
                                 .panels = panels,
                                 .panel_stride = panel_stride,
                                 .tile = tiles_ + rows.begin * kTileColumns,
                                 .tile_stride = product_.row_panels * tile_size_,
                                 .rows = rows.size(),
                                 .carry = k.begin > 0});
    }
  }

  // Whether the elements of B, as the caller has them, are those that are multiplied.
  static bool is_multiplied_in_place(const Product& product) {
    const format::Format format = product.dword == Dword::kFp32 ? format::Format::kFp32 : format::Format::kBf16;
    const GemmOperand& b = product.gemm.b;
    return product.stored == product.dword && b.format == format && b.k_stride == 1;
  }

  void multiply_in_place(int64_t column) const {
    const GemmOperand& b = product_.gemm.b;
    const int64_t size = format::bytes(b.format), first = column * kTileColumns;
    for (int64_t part = 0; part < parts_; ++part) {
      const Range rows = part_of(product_.gemm.m, part, parts_);
      product_.isa.multiply_few_columns({.a = a_ + rows.begin * a_stride_,
                                         .a_stride = a_stride_,
                                         .b = static_cast<const char*>(b.data) + first * b.row_stride * size,
                                         .b_stride = b.row_stride * size,
                                         .column_bytes = product_.gemm.k * size,
                                         .columns = std::min(kTileColumns, product_.gemm.n - first),
                                         .tile = tiles_ + rows.begin * kTileColumns,
                                         .rows = rows.size()});
    }
  }

  // A panel made a part of k at a time.
  void multiply_parts(int64_t column) const {
    const int64_t depth = as_stored_ ? kPanelDepth * depth_of(stored_) : kPanelDepth;
    int64_t k = 0;
    do {
      const Range part = {k, std::min(k + depth, product_.gemm.k)};
      if (as_stored_) {
        multiply_as_stored(part, pack(column, part, stored_), 1, panel_dwords_of(depth, stored_));
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
                             .tile = tile(row, 0),
                             .rows = product_.rows_in(row),
                             .carry = k.begin > 0,
                             .prefetch = reinterpret_cast<const char*>(b + kPanelDepth * kBPitch),
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
  const bool as_stored_, in_place_;
  const int64_t parts_, panels_, a_stride_;
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
