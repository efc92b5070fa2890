// One AdamW step on one tensor in one pass: reads the gradient, updates the FP32 master weight and both moments, and on
// request writes the weight's narrow copy. Numerics: docs/numerics.md, "adamw".
//   g = grad * grad_scale + l2 w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w = w (1 - lr weight_decay) - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
// The rule of torch.optim.AdamW (decoupled decay). Coefficients in double, elements in FP32. Same bits on every ISA and
// thread count. Any count >= 0, any alignment. Non-finite gradients reach the weights: the caller skips such a step.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct AdamW {
  float* master = nullptr;                             // [count]
  const void* grad = nullptr;                          // [count]
  format::Format grad_format = format::Format::kFp32;  // fp32, bf16, fp16
  void* moment1 = nullptr;                             // [count]
  void* moment2 = nullptr;                             // [count]
  // fp32, bf16. BF16 moments round stochastically: to nearest, a second moment that moves by 1 - beta2 = 0.1 % a step
  // would stand still (half a unit of BF16 is 0.2 %). Element i draws word i of Philox(seed, step): upper half for
  // moment1, lower half for moment2.
  format::Format moment_format = format::Format::kFp32;
  uint64_t seed = 0;  // of this tensor
  int64_t count = 0;

  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled
  double l2 = 0;               // of torch.optim.Adam: l2 * w is part of the gradient
  int64_t step = 1;            // of this update, from 1
  float grad_scale = 1.0f;     // inverse loss scale times clip factor

  void* narrow = nullptr;                                // [count], optional: the new weight, nearest even
  format::Format narrow_format = format::Format::kBf16;  // bf16, fp16
};

// Returns the amax of the new weights: NaN > Inf > finite; 0 for count = 0.
float adamw(const AdamW& args);

}  // namespace plimsoll::kernels
