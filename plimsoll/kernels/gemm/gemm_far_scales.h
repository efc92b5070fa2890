// Scales far from 1, such as a row's 1e32 beside a column's 1e-5: the sum times the first of them may leave FP32's
// normal numbers where the sum times both does not. Rows with such a scale are scaled before the epilogue, as though
// exponents had no limits between the two multiplications: the bits are those of the epilogue wherever that stays among
// the normal numbers, so a row's bits do not depend on the scales of other rows. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/kernels/gemm/gemm.h"

namespace plimsoll::kernels {

class FarScales {
 public:
  // row_scale [m] is what the epilogue would multiply with, alpha included.
  FarScales(const Gemm& args, const float* row_scale);

  // Whether the epilogue must not scale these rows.
  bool holds(int64_t first_row, int64_t rows) const;

  // Factors of 1 for the epilogue, as many as there are rows or columns.
  const float* ones() const { return ones_.data(); }

  // tile[i, j] *= scale of row first_row + i, alpha included, then of column j; rows are `stride` apart.
  struct Tile {
    float* values;
    int64_t stride;
    int64_t first_row, rows, columns;
    const float* column_scale;  // [columns]
  };
  void apply(const Tile& tile) const;

 private:
  bool is_far(float row_scale) const { return !(row_scale >= least_ && row_scale <= most_); }

  const float* row_scale_;
  float least_ = 0, most_ = 0;      // magnitudes that the epilogue may multiply with
  std::vector<double> exact_rows_;  // [m]; empty where no row is far
  std::vector<float> ones_;
};

}  // namespace plimsoll::kernels
