// Passes over one tile on one instruction set. Private to this folder. A tile is a piece of a matrix that stays in a
// core's caches.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/format/fp4_block.h"
#include "plimsoll/kernels/error_statistic.h"

namespace plimsoll::kernels {

inline constexpr int64_t kFp4Chunk = 512;      // elements of a row at a time; tiles of rows begin at multiples of it
inline constexpr int64_t kFp4GroupRows = 128;  // rows of a column at a time; tiles of columns begin at multiples of it
inline constexpr int64_t kFp4LargestRotation = 128;

struct Fp4Tile {
  const void* x;  // [rows, cols]
  format::Format x_format;
  int64_t rows, cols, x_stride;
  int64_t row, col;  // place of the tile in x; by columns, col is a multiple of 32
  format::Fp4Scaling scaling;
  float encode_scale = 1.0f;
  uint8_t* codes = nullptr;  // of the tile's first element; nullptr: only the amax is wanted
  int64_t codes_stride = 0;
  uint8_t* scale = nullptr;  // of the tile's first block
  int64_t scale_stride = 0;
  int64_t rotation = 0;          // 0, 16, 128
  const float* signs = nullptr;  // [kFp4LargestRotation] +-1 / sqrt(rotation), repeated
  bool stochastic = false, stochastic_scales = false;
  uint64_t seed = 0, step = 0;
  // 32 bits each: by rows of a row, by columns of two rows; of two rows of blocks where scales are stochastic.
  int64_t words = 0;
};

struct Fp4TileResult {
  int32_t amax = 0;  // FP32 bits
  int64_t non_finite_blocks = 0;
};

struct QuantizeFp4Loops {
  // FP32 bits of the largest magnitude of what `rows` and `columns` encode: NaN > Inf > finite. No codes and scales.
  int32_t (*row_amax)(const Fp4Tile&);
  int32_t (*column_amax)(const Fp4Tile&);
  Fp4TileResult (*rows)(const Fp4Tile&);
  Fp4TileResult (*columns)(const Fp4Tile&);
  // One scale for 16 x 16; rows begin at a multiple of 16.
  Fp4TileResult (*squares)(const Fp4Tile&);
  // Codes of columns with the scales that `squares` has written.
  void (*squares_transposed)(const Fp4Tile&);
  // Losses of the tile's codes. height: rows that share scales, 1 or 16.
  void (*row_error)(const Fp4Tile&, int64_t height, ErrorSums&);
  void (*column_error)(const Fp4Tile&, ErrorSums&);
};

extern const QuantizeFp4Loops kQuantizeFp4LoopsPortable, kQuantizeFp4LoopsAvx2, kQuantizeFp4LoopsAvx512;

}  // namespace plimsoll::kernels
