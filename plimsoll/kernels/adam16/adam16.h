// One step of Adam or AdamW on one tensor in one pass, where the weight, its gradient and both moments have one format of 16
// bits and each is rounded to nearest, even: the rule of torch's fused optimizers. kernels/adamw keeps what 16 bits lose.
//   g = +-grad + l2 w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w = w (1 - lr weight_decay) - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
// m and v enter the weight before they are rounded. Coefficients in double, elements in FP32. Same bits on every ISA and thread
// count. Any count >= 0, any alignment. Numerics: docs/numerics.md.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct Adam16 {
  format::Format format = format::Format::kBf16;  // of the four arrays: bf16, fp16
  void* weight = nullptr;                         // [count]
  const void* grad = nullptr;                     // [count]
  void* moment1 = nullptr;                        // [count]
  void* moment2 = nullptr;                        // [count]
  int64_t count = 0;

  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // decoupled: AdamW
  double l2 = 0;            // part of the gradient: Adam
  bool maximize = false;    // g has the sign of -grad
  double step = 1;          // of this update, from 1
};

void adam16(const Adam16& args);

}  // namespace plimsoll::kernels
