// The steps of a product in terms of what the instruction set supplies.
#include <algorithm>

#include "plimsoll/kernels/gemm/gemm_block.h"
#include "plimsoll/kernels/gemm/scale_at.h"

namespace plimsoll::kernels {

int64_t Product::rows_in(int64_t row_panel) const {
  return std::min(isa.panel_rows, gemm.m - row_panel * isa.panel_rows);
}

void Product::pack_a(Range panels, Range k, uint32_t* to) const {
  isa.pack_a({.operand = &gemm.a,
              .row_begin = panels.begin * isa.panel_rows,
              .row_end = std::min(panels.end * isa.panel_rows, gemm.m),
              .readable_end = gemm.m,
              .k_begin = k.begin,
              .k_end = k.end,
              .fold_scale = folds_scale(gemm.a, gemm.k),
              .dword = dword,
              .panels = to,
              .panel_stride = a_panel_dwords(k.size())});
}

void Product::pack_rows(uint32_t* to, int64_t stride) const {
  isa.pack_rows({.operand = &gemm.a,
                 .row_end = gemm.m,
                 .readable_end = gemm.m,
                 .k_end = gemm.k,
                 .fold_scale = folds_scale(gemm.a, gemm.k),
                 .dword = dword,
                 .panels = to,
                 .panel_stride = stride});
}

void Product::finish_tile(int64_t row_panel, int64_t column_panel, float* tile) {
  const int64_t row = row_panel * isa.panel_rows, rows = rows_in(row_panel), column = column_panel * kTileColumns,
                columns = std::min(kTileColumns, gemm.n - column);
  const bool is_far = far_scales.holds(row, rows);
  if (is_far) {
    far_scales.apply({.values = tile,
                      .stride = kTileColumns,
                      .first_row = row,
                      .rows = rows,
                      .columns = columns,
                      .column_scale = column_scale + column});
  }
  amax.raise(isa.finish(
      {.gemm = &gemm,
       .row_scale = is_far ? far_scales.ones() : row_scale,
       .column_scale = is_far ? far_scales.ones() : column_scale,
       .tile = tile,
       .row = row,
       .rows = rows,
       .column = column,
       .columns = columns,
       .column_partial = column_partial == nullptr ? nullptr : column_partial + row_panel * gemm.n + column}));
}

void pack_columns(const GemmOperand& b, int64_t n, int64_t k, const GemmIsa& isa, const PackColumns& args) {
  isa.pack_b({.operand = &b,
              .row_begin = args.panels.begin * kTileColumns,
              .row_end = std::min(args.panels.end * kTileColumns, n),
              .readable_end = n,
              .k_begin = args.k.begin,
              .k_end = args.k.end,
              .fold_scale = folds_scale(b, k),
              .dword = args.dword,
              .panels = args.to,
              .panel_stride = args.panel_stride,
              .places = args.places});
}

}  // namespace plimsoll::kernels
