// Quantization to FP8 in one read of x.
//
// codes = encode(x * (1 / scale)): the product in FP32, then one rounding to nearest even, saturating. NaN stays NaN,
// zero and results that round to zero keep their sign. Every function writes the amax of x (unscaled) to `amax` if that
// is given: the largest FP32 bit pattern with the sign cleared, so NaN > Inf > finite and nothing that is not finite
// hides behind a saturated code; 0 for an empty x. Same bits on every ISA and for any thread count. Any rows, cols >= 0,
// any alignment; strides in elements, rows may not overlap.
#pragma once

#include <cstdint>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/format.h"
#include "plimsoll/kernels/error_statistic.h"

namespace plimsoll::kernels {

// One scale for the whole tensor, chosen by the caller.
struct QuantizeTensor {
  const void* x = nullptr;                          // [rows, cols]
  format::Format x_format = format::Format::kFp32;  // fp32, fp16, bf16
  int64_t rows = 0, cols = 0;
  int64_t x_stride = 0;
  uint8_t* codes = nullptr;                       // [rows, cols]; nullptr: only the sums are wanted
  format::Format format = format::Format::kE4m3;  // e4m3, e5m2
  int64_t codes_stride = 0;
  const float* scale = nullptr;            // one float; nullptr or 0: 1
  float* amax = nullptr;                   // one float, overwritten
  float* column_sum = nullptr;             // [cols]: sum over the rows of x (dbias), overwritten
  QuantizeStatistic* statistic = nullptr;  // one, overwritten; with codes alone
};
void quantize_tensor(const QuantizeTensor& args);

struct Amax {
  const void* x = nullptr;                          // [rows, cols]
  format::Format x_format = format::Format::kFp32;  // fp32, fp16, bf16
  int64_t rows = 0, cols = 0;
  int64_t x_stride = 0;
  float* amax = nullptr;  // one float, overwritten
};
void amax(const Amax& args);

// One scale per block, from the block's own amax: scale = max(amax / max_finite, FLT_MIN), codes = encode(x * (1 /
// scale)); finite values never overflow. A block that holds NaN or Inf becomes NaN as a whole: its scale is NaN (E8M0:
// 255) and every code is NaN (0x7f).
struct QuantizeBlocks {
  const void* x = nullptr;                          // [rows, cols]
  format::Format x_format = format::Format::kFp32;  // fp32, fp16, bf16
  int64_t rows = 0, cols = 0;
  int64_t x_stride = 0;
  uint8_t* codes = nullptr;                       // [rows, cols]
  format::Format format = format::Format::kE4m3;  // e4m3, e5m2
  int64_t codes_stride = 0;
  // 0: the whole extent. {1, 0} per row, {1, 128}, {128, 128}, MX {1, 32} or {32, 1}.
  int64_t block_rows = 0, block_cols = 0;
  void* scale = nullptr;                                // [ceil(rows / block_rows), ceil(cols / block_cols)]
  format::Format scale_format = format::Format::kFp32;  // fp32 (float), e8m0 (uint8_t)
  int64_t scale_stride = 0;
  bool power_of_two = false;                                    // fp32 scales rounded up to a power of two
  format::ScaleRounding rounding = format::ScaleRounding::kUp;  // of e8m0 scales; kDown can saturate
  float* amax = nullptr;                                        // one float, overwritten
  QuantizeStatistic* statistic = nullptr;                       // one, overwritten
};
void quantize_blocks(const QuantizeBlocks& args);

}  // namespace plimsoll::kernels
