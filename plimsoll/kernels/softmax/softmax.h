// Softmax over the last dimension: y = softmax(scale * x, masked), FP32 inside. Masked places are 0; a row that is
// masked whole is all 0. Same bits on every ISA and thread count. Matrices are contiguous [batch, heads, queries,
// keys].
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/causal.h"

namespace plimsoll::kernels {

struct SoftmaxShape {
  int64_t batch = 0, heads = 0, queries = 0, keys = 0;
};

struct SoftmaxForward {
  SoftmaxShape shape;
  const void* x = nullptr;
  void* y = nullptr;
  format::Format format = format::Format::kFp32;  // of x and y: fp32, bf16, fp16
  float scale = 1.0f;
  Causal causal = Causal::kNone;
  const uint8_t* mask = nullptr;                                               // optional, nonzero = masked
  int64_t mask_batch_stride = 0, mask_head_stride = 0, mask_query_stride = 0;  // 0 broadcasts; keys are contiguous
};

void softmax_forward(const SoftmaxForward& args);

struct SoftmaxBackward {
  SoftmaxShape shape;
  const void* y = nullptr;  // what forward returned
  const void* dy = nullptr;
  void* dx = nullptr;  // scale * y * (dy - sum(y * dy)); 0 where y is 0 because of a mask
  format::Format format = format::Format::kFp32;
  float scale = 1.0f;
};

void softmax_backward(const SoftmaxBackward& args);

}  // namespace plimsoll::kernels
