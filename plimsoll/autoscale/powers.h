// Powers of a tensor's elements. One that is negative or above 1 spreads them (Spread), so that its data are FP32.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// exponent: the argument of pow, a number.
bool is_spreading_power(const c10::IValue& exponent);

// Whether the product of both is a square.
bool are_one_tensor(const at::Tensor& a, const at::Tensor& b);

// pow.Tensor_Scalar.
void raise(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
