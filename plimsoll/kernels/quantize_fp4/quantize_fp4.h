// Quantization to NVFP4 and MXFP4: E2M1 codes, two a byte, with a scale for each block of 16 or 32 elements along a row
// of x or along a column. format/fp4_block.h defines scales and factors, operation by operation; the codes of a block are
// those of x * factor in FP32, saturating at 6, rounded to nearest even or stochastically. -0 keeps its sign. A block
// that holds NaN or Inf has a NaN scale and codes of zero. Four over six compares the sums of (|q| scale - |x
// encode_scale|)^2, q being the nearest code's value: each operation in FP32, neighbours 2 i and 2 i + 1 first, over the
// rows of a square in order, then a tree of the eight. The sums of an MS-EDEN correction are those of its eight blocks,
// likewise, in a tree of the eight. Same bits on every ISA and for any thread count. Any rows, cols
// >= 0, any alignment; strides in elements of x and in bytes of codes and scales. A last block may be shorter, and the
// last half byte of an odd count is zero. A statistic is that of x as it was encoded, rotated where lines are.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/format/fp4_block.h"
#include "plimsoll/kernels/error_statistic.h"

namespace plimsoll::kernels {

// Random orthogonal matrix H diag(signs) on each group of `size` consecutive elements, which is a Sylvester matrix over
// sqrt(size). Operands of a product that are both rotated along the summed dimension give the same product. Each
// element is multiplied with +-1 / sqrt(size) in FP32; then stage s = 0, 1, ... replaces elements i and i + 2^s by their
// sum and difference. Missing elements of a last group are zeros, whose places get codes, too: round the count up.
struct Fp4Rotation {
  int64_t size = 0;             // 0: none; 16 or 128
  uint64_t seed = 0, step = 0;  // sign of place i of a group: bit i % 32 of word i / 32 of runtime::Philox{seed, step}
};

// Stochastic rounding with 16 bits of runtime::RoundingWords{seed, step} for each element (format::E2m1::
// encode_stochastic_16). Elements i and i + 1, i even, of line l have the lower and the upper half of word
// l * 16 ceil(length / 32) + i / 2 where lines are rows, (i / 2) * 32 ceil(cols / 32) + l where they are columns.
// MS-EDEN: elements are rounded to nearest, and scales stochastically; i is the number of a block of its line, and `length`
// how many the line, not rotated, has.
struct Fp4Noise {
  bool stochastic = false;
  uint64_t seed = 0, step = 0;
};

// Codes of all lines of x, which are its rows or its columns; `length` elements each.
struct Fp4Lines {
  uint8_t* codes = nullptr;  // [lines, ceil(length / 2)]; nullptr: not wanted
  int64_t codes_stride = 0;
  uint8_t* scale = nullptr;  // [lines, ceil(length / block)] E4M3 or E8M0
  int64_t scale_stride = 0;
  Fp4Rotation rotation = {};
  Fp4Noise noise = {};
  // NVFP4: the amax of x (rotated, where lines are) that its scale is made from; nullptr: found first, by one more read.
  const float* tensor_amax = nullptr;
  float* tensor_scale = nullptr;  // one float: 1 / encode_scale; 1 for MXFP4
  float* amax = nullptr;          // one float, optional: that of x, rotated where lines are; NaN > Inf > finite
  QuantizeStatistic* statistic = nullptr;  // one, optional, overwritten
};

struct QuantizeFp4 {
  const void* x = nullptr;                          // [rows, cols]
  format::Format x_format = format::Format::kFp32;  // fp32, fp16, bf16
  int64_t rows = 0, cols = 0;
  int64_t x_stride = 0;
  format::Fp4Scaling scaling = format::Fp4Scaling::kNvfp4;
  Fp4Lines by_row = {};                  // blocks along a row: codes [rows, cols / 2]
  Fp4Lines by_column = {};               // blocks along a column: codes [cols, rows / 2], that is of x transposed
  int64_t* non_finite_blocks = nullptr;  // optional: how many blocks hold NaN or Inf, of both; overwritten
};
void quantize_fp4(const QuantizeFp4& args);

// One scale for 16 x 16 elements (NVFP4 or four over six, no MS-EDEN, nearest even), so that x and its transpose have the
// same values.
struct QuantizeFp4Squares {
  const void* x = nullptr;                          // [rows, cols]
  format::Format x_format = format::Format::kFp32;  // fp32, fp16, bf16
  int64_t rows = 0, cols = 0;
  int64_t x_stride = 0;
  format::Fp4Scaling scaling = format::Fp4Scaling::kNvfp4;
  uint8_t* codes = nullptr;  // [rows, ceil(cols / 2)]
  int64_t codes_stride = 0;
  uint8_t* transposed = nullptr;  // [cols, ceil(rows / 2)]; nullptr: not wanted
  int64_t transposed_stride = 0;
  uint8_t* scale = nullptr;  // [ceil(rows / 16), ceil(cols / 16)] E4M3
  int64_t scale_stride = 0;
  const float* tensor_amax = nullptr;  // as above
  float* tensor_scale = nullptr;
  float* amax = nullptr;
  int64_t* non_finite_blocks = nullptr;
  QuantizeStatistic* statistic = nullptr;  // of `codes`
};
void quantize_fp4_squares(const QuantizeFp4Squares& args);

}  // namespace plimsoll::kernels
