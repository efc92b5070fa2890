// Casts of scaled tensors to dtypes that round: 16 bits, and fewer.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {

// Whether a cast from FP32 to it rounds.
bool is_narrow(at::ScalarType dtype);

// The values of x, plain or scaled, as torch casts them to `dtype`, in FP32.
at::Tensor cast_values(const at::Tensor& x, at::ScalarType dtype);

// values, FP32, not rounded: at the exponent that they are measured to need in `dtype`, where that holds all of them,
// else as they are.
Encoded encode_exactly(const at::Tensor& values, at::ScalarType dtype);

// The scaled tensor x as a cast to `dtype` leaves it, which rounds. values: cast_values() of x, in any memory format.
at::Tensor with_cast_values(const at::Tensor& x, const at::Tensor& values, at::ScalarType dtype);

}  // namespace plimsoll::autoscale
