// E4M3 codes of a matrix whose rounding errors are made up for (kernels/column_feedback.h). Scales are those of quantize_blocks(),
// of the values that a block has when its first column is about to be rounded: of whole rows, the values that are given.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

// All of it in FP64 but for scales and codes, which are of values rounded to FP32. A value that has grown beyond the range of its
// block's codes, or beyond FP32's, saturates. Same bits on every ISA and for any thread count. Finite values; any rows and cols.
struct FeedbackFp8 {
  double* x = nullptr;  // [rows, cols]; what is left of it has no meaning
  int64_t rows = 0, cols = 0;
  const double* feedback =
      nullptr;  // [cols, cols], upper triangular with a positive diagonal: U of U^T U = inverse of X^T X
  int64_t block_rows = 0, block_cols = 0;  // 0: the whole extent
  uint8_t* codes = nullptr;                // [rows, cols]
  float* scale = nullptr;                  // [ceil(rows / block_rows), ceil(cols / block_cols)]
};
void feedback_fp8(const FeedbackFp8& args);

}  // namespace plimsoll::kernels
