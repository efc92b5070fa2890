// Rounding up or down with the probability of what is cut off, so that a small step is not lost but rarer.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::autoscale {

// x: fp32. dtype: kHalf or kBFloat16. Random numbers are those of torch's default generator. Below the smallest normal
// number of dtype the nearest is taken; what is not finite stays.
at::Tensor round_stochastically(const at::Tensor& x, at::ScalarType dtype);

}  // namespace plimsoll::autoscale
