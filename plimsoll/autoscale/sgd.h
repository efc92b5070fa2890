// A step of torch's fused SGD on (data, remainder), in one pass.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::autoscale {

struct SgdStep {
  at::Tensor parameter, gradient;
  at::Tensor momentum_buffer;  // undefined: no momentum
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  bool is_first = false;  // the buffer is written, not read
};

// The buffer becomes FP32 at exponent 0. False, and nothing is done, as step_adamw() does.
bool step_sgd(const SgdStep& step);

}  // namespace plimsoll::autoscale
