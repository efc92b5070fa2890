// Rotary positions on queries and keys.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

struct RotaryOptions {
  int64_t position_dim = 0;  // the dimension of x that counts positions: 0, or 1 where the batch comes first
  bool interleaved = false;  // pairs are channels 2i and 2i + 1, not i and i + rotated / 2
};

// x [.., .., heads, channels] or [tokens, heads, channels] of fp32, bf16 or fp16; angles fp32 [positions or more,
// rotated], rotated even and at most channels; channels beyond are as they were. FP32 inside, one rounding to the
// dtype of x. Differentiable in x.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& angles, const RotaryOptions& options);

}  // namespace plimsoll::ops
