// Passes over one tile on one instruction set. Private to this folder. A tile is a piece of a matrix that stays in a core's caches
// between passes.
#pragma once

#include <cstdint>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/format.h"
#include "plimsoll/kernels/error_statistic.h"

namespace plimsoll::kernels {

struct EncodeTile {
  const void* x;  // [rows, cols]
  format::Format x_format;
  int64_t rows, cols, x_stride;
  uint8_t* codes;  // [rows, cols]
  format::Format format;
  int64_t codes_stride;
  const float* inv_scale;  // of column c: inv_scale[c / group_cols]
  int64_t group_cols;      // >= 1; encode_groups alone reads it
  int64_t prefetch_distance =
      256;  // elements ahead of use: what this thread reads next, and the hardware does not foresee
};

struct AmaxTile {
  const void* x;  // [rows, cols]
  format::Format x_format;
  int64_t rows, cols, x_stride;
  int64_t group_cols;   // columns that share a maximum, >= 1
  int32_t* group_amax;  // [ceil(cols / group_cols)] FP32 bit patterns, raised to what the tile holds
};

struct BlockScales {
  const int32_t* amax;  // [count] of blocks, FP32 bit patterns
  int64_t count;
  format::Format format;  // of the codes
  void* scale;            // [count]
  format::Format scale_format;
  bool power_of_two;
  format::ScaleRounding rounding;
  float* inv_scale;  // [count] what x is multiplied with: 0 where the scale is NaN
};

struct SumTile {
  const void* x;  // [rows, cols]
  format::Format x_format;
  int64_t rows, cols, x_stride;
  float* sum;  // [cols], overwritten: x[0, c] + x[1, c] + ... in this order
};

struct ErrorTile {
  const void* x;  // [rows, cols]
  format::Format x_format;
  int64_t rows, cols, x_stride;
  const uint8_t* codes;  // [rows, cols]
  format::Format format;
  int64_t codes_stride;
  const float* inv_scale;  // of column c: inv_scale[c / group_cols]
  const float* weight;     // in the same places, what a unit of the codes is in that of the sums
  int64_t group_cols;      // 1, or a multiple of 16, or the whole tile's width or more
  int64_t row;             // of the matrix, where the tile begins
  ErrorSums* sums;         // overwritten but for its unit
};

struct QuantizeLoops {
  int32_t (*encode)(const EncodeTile&);  // returns the amax of x as a bit pattern
  void (*encode_groups)(const EncodeTile&);
  void (*amax)(const AmaxTile&);
  int32_t (*block_scales)(const BlockScales&);  // returns the largest amax
  void (*column_sum)(const SumTile&);
  void (*error)(const ErrorTile&);
};

extern const QuantizeLoops kQuantizeLoopsPortable, kQuantizeLoopsAvx2, kQuantizeLoopsAvx512;

// The best of them at or below runtime::isa() of the calling thread; fetch it before a parallel region.
const QuantizeLoops& quantize_loops();

}  // namespace plimsoll::kernels
