// One step of torch.optim.SGD on one tensor in one pass: reads the gradient, updates the FP32 weight and, with
// momentum, its buffer.
//   g = grad * grad_scale + weight_decay w;  b = momentum b + (1 - dampening) g, at the first step g
//   w = w - lr b;  with nesterov w = w - lr (g + momentum b);  without momentum w = w - lr g
// Coefficients in double, elements in FP32. Same bits on every ISA and thread count. Any count >= 0, any alignment.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct Sgd {
  float* weight = nullptr;                             // [count]
  const void* grad = nullptr;                          // [count]
  format::Format grad_format = format::Format::kFp32;  // fp32, bf16, fp16
  float* momentum_buffer = nullptr;                    // [count]; nullptr: no momentum
  bool is_first = false;                               // the buffer is written, not read
  bool nesterov = false;
  int64_t count = 0;

  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  float grad_scale = 1.0f;
};

// Returns the amax of the new weights: NaN > Inf > finite; 0 for count = 0.
float sgd(const Sgd& args);

}  // namespace plimsoll::kernels
