// One pass over all gradients of a model: scales them (1 / loss scale, or a clip factor), finds what is not finite, and
// sums the squares for the global norm. Numerics: docs/numerics.md, "gradient".
//   y = x * scale in FP32, per element;  sum_of_squares = sum of y^2 in double, each square exact
// Same bits on every ISA and thread count: blocks of fixed size, added in order in groups of fixed size, which are added in order. Any
// number of tensors, any count, any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct GradientTensor {
  void* data = nullptr;                           // [count]; not written unless GradientPass::write
  format::Format format = format::Format::kFp32;  // fp32, bf16, fp16
  int64_t count = 0;
};

struct GradientPass {
  const GradientTensor* tensors = nullptr;  // [tensor_count]
  size_t tensor_count = 0;
  float scale = 1.0f;  // Inf: no y is finite
  bool write = false;  // store y, rounded to the tensor's format; otherwise the tensors are only read
};

struct GradientSummary {
  double sum_of_squares = 0;      // of y before it is rounded; not finite exactly if non_finite > 0
  int64_t non_finite = 0;         // elements of y that are Inf or NaN
  int64_t first_non_finite = -1;  // index of the first tensor that holds one; -1: none
};

GradientSummary gradient_pass(const GradientPass& args);

}  // namespace plimsoll::kernels
