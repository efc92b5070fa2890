// Logarithm of the softmax over the last dimension, y = x - log sum e^x, and its gradient. FP32 inside, the maximum
// subtracted first. Same bits on every ISA, alignment and thread count. Matrices are contiguous [rows, cols]; any rows,
// cols >= 0. Numerics: docs/numerics.md, "log_softmax".
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

// A row with a NaN or +Inf, or nothing but -Inf, is NaN; a logit of -Inf stays one.
struct LogSoftmaxForward {
  int64_t rows = 0, cols = 0;
  const void* x = nullptr;
  void* y = nullptr;                              // may be x
  format::Format format = format::Format::kFp32;  // of x and y: fp32, bf16, fp16
};

void log_softmax_forward(const LogSoftmaxForward& args);

struct LogSoftmaxBackward {
  int64_t rows = 0, cols = 0;
  const void* y = nullptr;  // what forward returned
  const void* dy = nullptr;
  void* dx = nullptr;  // dy - e^y sum(dy); may be dy
  format::Format format = format::Format::kFp32;
};

void log_softmax_backward(const LogSoftmaxBackward& args);

}  // namespace plimsoll::kernels
