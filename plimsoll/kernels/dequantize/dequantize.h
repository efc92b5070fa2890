// output[row, col] = decode(codes[row, col]) * scale(row, col): the product in FP32, then one rounding, nearest even,
// to the output format. Codes decode exactly. E2M1: (code * block scale), which is exact, times the tensor scale; a
// block whose scale is NaN is NaN. Same bits on every ISA and for any thread count. Any rows, cols >= 0, any alignment;
// strides in elements, of E2M1, two of which are a byte, even.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/scale_view.h"

namespace plimsoll::kernels {

struct Dequantize {
  const uint8_t* codes = nullptr;                 // [rows, cols]
  format::Format format = format::Format::kE4m3;  // e4m3, e5m2, e2m1
  int64_t rows = 0, cols = 0;
  int64_t codes_stride = 0;
  ScaleView scale;                                       // blocks of this [rows, cols] matrix
  void* output = nullptr;                                // [rows, cols]
  format::Format output_format = format::Format::kFp32;  // fp32, fp16, bf16
  int64_t output_stride = 0;
};
void dequantize(const Dequantize& args);

}  // namespace plimsoll::kernels
