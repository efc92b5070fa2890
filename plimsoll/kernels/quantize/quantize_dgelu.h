// Backward of GELU (tanh form) fused with quantization: y = grad * gelu'(pre_activation) in FP32, then
// quantize_tensor's work on y, in one read. y itself is not stored. Returns the amax of y. Same bits on every ISA and
// for any thread count; any shape and strides.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct QuantizeDgelu {
  const void* grad = nullptr;                       // [rows, cols]
  const void* pre_activation = nullptr;             // [rows, cols], what gelu was applied to
  format::Format x_format = format::Format::kFp32;  // of both: fp32, fp16, bf16
  int64_t rows = 0, cols = 0;
  int64_t grad_stride = 0, pre_activation_stride = 0;
  uint8_t* codes = nullptr;                       // [rows, cols]; nullptr: only the transposed ones are wanted
  format::Format format = format::Format::kE5m2;  // e4m3, e5m2
  int64_t codes_stride = 0;
  float inv_scale = 1.0f;
  uint8_t* transposed = nullptr;  // codes^T [cols, rows]
  int64_t transposed_stride = 0;
  float* column_sum = nullptr;  // [cols]: sum over the rows of y (dbias), overwritten
  format::Overflow overflow = format::Overflow::kSaturate;
};
float quantize_dgelu(const QuantizeDgelu& args);

}  // namespace plimsoll::kernels
