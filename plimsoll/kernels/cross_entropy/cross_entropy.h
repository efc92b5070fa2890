// Cross entropy of each row of logits and, in the same pass over the row, its gradient: the row comes from memory once
// and goes back once. FP32 inside, the maximum subtracted. Same bits on every ISA, alignment and thread count. Any rows
// >= 0, vocabulary >= 1. Numerics: docs/numerics.md, "cross_entropy".
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

// With p = softmax(x) and q = (1 - label_smoothing) onehot(target) + label_smoothing / vocabulary:
//   loss = weight (log sum e^x - sum q x),  grad = factor weight (p - q),
// weight = class_weight[target], factor = grad_factor * row_factor[row]. A row with a NaN or +Inf, or nothing but -Inf,
// has loss and gradient NaN; a logit of -Inf has p = 0, and makes the loss Inf where q is not 0.
struct CrossEntropy {
  int64_t rows = 0, vocabulary = 0;
  const void* logits = nullptr;
  int64_t logits_stride = 0;                      // elements from row to row
  format::Format format = format::Format::kFp32;  // of logits and grad: fp32, bf16, fp16
  const int64_t* targets = nullptr;  // [rows], 0 .. vocabulary - 1 or ignore_index; on a device another makes a row NaN
  int64_t ignore_index = -100;       // such a row has loss 0 and gradient 0
  float label_smoothing = 0.0f;
  const float* class_weight = nullptr;  // [vocabulary], optional; not with label_smoothing
  float* loss = nullptr;                // [rows]
  void* grad = nullptr;                 // [rows, vocabulary], optional; may be the logits
  int64_t grad_stride = 0;
  float grad_factor = 1.0f;
  const float* row_factor = nullptr;  // [rows], optional
};

void cross_entropy(const CrossEntropy& args);

}  // namespace plimsoll::kernels
