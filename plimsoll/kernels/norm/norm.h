// LayerNorm and RMSNorm over the last dimension, with the residual addition before and the FP8 quantization after in
// one read.
//   sum = x + residual (if given);  y = (sum - mean) * rstd * weight + bias   (RMSNorm: y = sum * rstd * weight)
// Statistics in FP32 of the sum as stored. zero_centered: the weight is stored minus one. Same bits on every ISA and
// thread count. Any rows, cols >= 0; matrices are contiguous. Source: Ba et al. 2016; Zhang and Sennrich 2019.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };

struct NormForward {
  NormKind kind = NormKind::kLayerNorm;
  int64_t rows = 0, cols = 0;
  const void* x = nullptr;                          // [rows, cols]
  const void* residual = nullptr;                   // [rows, cols], optional
  void* sum = nullptr;                              // [rows, cols]; required with residual
  format::Format x_format = format::Format::kFp32;  // of x, residual and sum: fp32, bf16, fp16
  const float* weight = nullptr;                    // [cols]
  const float* bias = nullptr;                      // [cols], optional, LayerNorm only
  bool zero_centered = false;
  float epsilon = 1e-5f;
  void* y = nullptr;                                // [rows, cols]
  format::Format y_format = format::Format::kFp32;  // fp32, bf16, fp16, e4m3, e5m2
  const float* scale = nullptr;  // FP8: codes = encode(y * (1 / *scale)), saturating; nullptr or 0: 1
  float* amax = nullptr;         // of y before it is scaled, overwritten; optional
  float* mean = nullptr;         // [rows], optional; LayerNorm only
  float* rstd = nullptr;         // [rows], optional
};

void norm_forward(const NormForward& args);

struct NormBackward {
  NormKind kind = NormKind::kLayerNorm;
  int64_t rows = 0, cols = 0;
  const void* dy = nullptr;  // [rows, cols]
  format::Format dy_format = format::Format::kFp32;
  const void* x = nullptr;  // [rows, cols], what was normalised (the sum)
  format::Format x_format = format::Format::kFp32;
  const float* weight = nullptr;  // [cols]
  bool zero_centered = false;
  const float* mean = nullptr;  // [rows]; LayerNorm
  const float* rstd = nullptr;  // [rows]
  // [rows, cols], dx_format, optional: the gradient that reaches the sum directly; added to dx.
  const void* dresidual = nullptr;
  void* dx = nullptr;  // [rows, cols]
  format::Format dx_format = format::Format::kFp32;
  float* dweight = nullptr;  // [cols], overwritten; optional. Row blocks of fixed size, summed in order
  float* dbias = nullptr;    // [cols], overwritten; optional
};

void norm_backward(const NormBackward& args);

}  // namespace plimsoll::kernels
