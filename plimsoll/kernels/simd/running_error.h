// Sums of one tile of a quantization in registers (kernels/error_statistic.h). Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/error_statistic.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Sums of elements of one row.
struct RowError {
  F32x16 error = zero(), squares = zero();

  // number: of the row in the matrix.
  __attribute__((always_inline)) void add_to(ErrorSums& sums, int64_t number) const {
    sums.row_error[number % kErrorClasses] += reduce_add(error);
    sums.row_squares[number % kErrorClasses] += reduce_add(squares);
  }
};

// Sums of four vectors of columns; which those are is the caller's matter.
struct RunningError {
  F32x16 error[4], squares[4];
  I32x16 saturated = set_i(0), flushed = set_i(0), nonzero = set_i(0);

  __attribute__((always_inline)) RunningError() {
    for (int k = 0; k < 4; ++k) error[k] = squares[k] = zero();
  }

  // y: x in the unit of the sums; difference: from it to its code's value. Lanes whose x and code are 0 add nothing.
  __attribute__((always_inline)) void add_squares(int k, F32x16 y, F32x16 difference, RowError& row) {
    error[k] = fma(difference, difference, error[k]);
    squares[k] = fma(y, y, squares[k]);
    row.error = fma(difference, difference, row.error);
    row.squares = fma(y, y, row.squares);
  }
  // y: x in the unit of `largest`, the largest code's value. Lanes of code, without sign, are zero where its value is.
  __attribute__((always_inline)) void count_losses(F32x16 x, F32x16 y, I32x16 code, F32x16 largest) {
    const I32x16 none = set_i(0), one = set_i(1);
    const I32x16 here = select_i(less_i(none, and_i(bits(x), set_i(0x7fffffff))), one, none);
    nonzero = add_i(nonzero, here);
    flushed = add_i(flushed, select_i(less_i(code, one), here, none));
    saturated = add_i(saturated, select_i(less(largest, abs(y)), one, none));
  }

  __attribute__((always_inline)) void store_to(ErrorSums& sums) const {
    for (int k = 0; k < 4; ++k) {
      store(sums.error + 16 * k, error[k]);
      store(sums.squares + 16 * k, squares[k]);
    }
    sums.saturated = count(saturated);
    sums.flushed = count(flushed);
    sums.nonzero = count(nonzero);
  }

 private:
  static __attribute__((always_inline)) int64_t count(I32x16 lanes) {
    int32_t each[16];
    store(reinterpret_cast<float*>(each), from_bits(lanes));
    int64_t sum = 0;
    for (const int32_t lane : each) sum += lane;
    return sum;
  }
};

}  // namespace
}  // namespace plimsoll::kernels
