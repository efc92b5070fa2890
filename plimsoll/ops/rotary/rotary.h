// Rotary positions on queries and keys.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

struct RotaryOptions {
  int64_t position_dim = 0;  // the dimension of x that counts positions: 0, or 1 where the batch comes first
  bool interleaved = false;  // pairs are channels 2i and 2i + 1, not i and i + rotated / 2
  // The last heads of x, copied as they are: in a fused projection [.., .., heads + 2 groups, channels] the `groups` of
  // the values. attention_packed() then takes what comes out, and the gradient stays one tensor.
  int64_t copied_heads = 0;
};

// Cosines and sines of angles, fp32: [positions or more, rotated], or those of each token by itself: the dimensions of x
// before its heads, then rotated.
struct RotaryTurns {
  at::Tensor cosine, sine;
};

// x [.., .., heads, channels] or [tokens, heads, channels] of fp32, bf16 or fp16; angles fp32 [positions or more,
// rotated], rotated even and at most channels; channels beyond are as they were. FP32 inside, one rounding to the
// dtype of x. Differentiable in x.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& angles, const RotaryOptions& options);
// The same, without computing cosines and sines: what many layers share. With turns of each token no dimension counts
// positions.
at::Tensor rotary(const at::Tensor& x, const RotaryTurns& turns, const RotaryOptions& options);

}  // namespace plimsoll::ops
