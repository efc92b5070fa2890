// Few rows: B is what takes time, so it passes by once, and all of A is packed beforehand.
#include <algorithm>

#include "plimsoll/kernels/gemm/gemm_block.h"
#include "plimsoll/runtime/scratch.h"

namespace plimsoll::kernels {
namespace {

// k of B packed at a time: 32 KiB of FP32 at most, half of it in L1 while rows of B are read from many places.
constexpr int64_t kDepth = 128;

class FewRows {
 public:
  explicit FewRows(Product& product) : product_(product) {
    const int64_t a_dwords = product.row_panels * a_panel_dwords(), b_dwords = kDepth * kBPitch;
    a_ = static_cast<uint32_t*>(
        runtime::scratch(runtime::ScratchSlot::kGemmA, static_cast<size_t>(a_dwords + b_dwords) * sizeof(uint32_t)));
    b_ = a_ + a_dwords;
    tile_size_ = product.isa.panel_rows * kTileColumns;
    tiles_ = static_cast<float*>(runtime::scratch(
        runtime::ScratchSlot::kGemmTile, static_cast<size_t>(product.row_panels * tile_size_) * sizeof(float)));
    product.pack_a({0, product.row_panels}, {0, product.gemm.k}, a_);
  }

  void multiply_stored(const ColumnChunk& chunk, int64_t column) {
    for (int64_t row = 0; row < product_.row_panels; ++row) {
      product_.multiply_stored({.k = product_.gemm.k,
                                .stored = chunk.layout.dword,
                                .a = a_ + row * a_panel_dwords(),
                                .b = chunk.at(0, column),
                                .tile = tile(row),
                                .rows = product_.rows_in(row)});
    }
  }

  void multiply_unpacked(int64_t column) {
    const Gemm& gemm = product_.gemm;
    int64_t k = 0;
    do {
      const Range part = {k, std::min(k + kDepth, gemm.k)};
      pack_columns(gemm.b, gemm.n, gemm.k, product_.isa,
                   {.panels = {column, column + 1}, .k = part, .dword = product_.dword, .to = b_});
      for (int64_t row = 0; row < product_.row_panels; ++row) {
        product_.multiply_tile({.k_dwords = dwords_of(part.size(), product_.dword),
                                .a = a_ + row * a_panel_dwords() + dwords_of(k, product_.dword) * kAPitch,
                                .b = b_,
                                .tile = tile(row),
                                .rows = product_.rows_in(row),
                                .carry = k > 0,
                                .prefetch = reinterpret_cast<const char*>(b_)});
      }
      k += kDepth;
    } while (k < gemm.k);
  }

  void finish(int64_t column) {
    for (int64_t row = 0; row < product_.row_panels; ++row) product_.finish_tile(row, column, tile(row));
  }

 private:
  int64_t a_panel_dwords() const { return dwords_of(product_.gemm.k, product_.dword) * kAPitch; }
  float* tile(int64_t row_panel) const { return tiles_ + row_panel * tile_size_; }

  Product& product_;
  int64_t tile_size_ = 0;
  uint32_t* a_ = nullptr;
  uint32_t* b_ = nullptr;
  float* tiles_ = nullptr;
};

}  // namespace

void multiply_few_rows(Product& product, const ColumnChunk& chunk, Range column_panels) {
  FewRows rows(product);
  for (int64_t column = column_panels.begin; column < column_panels.end; ++column) {
    if (chunk.packed != nullptr) {
      rows.multiply_stored(chunk, column);
    } else {
      rows.multiply_unpacked(column);
    }
    rows.finish(column);
  }
}

}  // namespace plimsoll::kernels
