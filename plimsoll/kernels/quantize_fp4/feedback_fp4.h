// NVFP4 and MXFP4 codes of a matrix whose rounding errors are made up for (kernels/column_feedback.h). Scales are those of
// quantize_fp4.h, of the values that a block has when its first column is about to be rounded.
#pragma once

#include <cstdint>

#include "plimsoll/format/fp4_block.h"

namespace plimsoll::kernels {

// All of it in FP64 but for scales and codes, which are of values rounded to FP32. Same bits on every ISA and for any thread count.
// Finite values; any rows, cols a multiple of the block.
struct FeedbackFp4 {
  double* x = nullptr;  // [rows, cols]; what is left of it has no meaning
  int64_t rows = 0, cols = 0;
  const double* feedback =
      nullptr;  // [cols, cols], upper triangular with a positive diagonal: U of U^T U = inverse of X^T X
  format::Fp4Scaling scaling = format::Fp4Scaling::kNvfp4;  // kNvfp4 or kMxfp4
  float tensor_amax = 0;                                    // NVFP4: that its scale is made from
  uint8_t* codes = nullptr;                                 // [rows, cols / 2], the even index in the low half
  uint8_t* scale = nullptr;                                 // [rows, cols / block] E4M3 or E8M0
};
void feedback_fp4(const FeedbackFp4& args);

}  // namespace plimsoll::kernels
