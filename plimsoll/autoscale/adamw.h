// A step of torch's fused AdamW, or Adam, on (data, remainder): values in FP32 are those of a block, which stays in the
// cache.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::autoscale {

struct AdamWStep {
  at::Tensor parameter, gradient, moment1, moment2;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, weight_decay = 0, eps = 1e-8;
  double l2 = 0;     // of Adam: a part of the gradient
  int64_t step = 1;  // of this update, from 1
  bool maximize = false;
};

// The moments become FP32 at exponent 0. False, and nothing is done, where the tensors do not lie alike in memories of
// their own, or where the session rounds by chance, measures what is written, or counts what is lost.
bool step_adamw(const AdamWStep& step);

}  // namespace plimsoll::autoscale
