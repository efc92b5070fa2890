// Functions of each element by itself that the library has (kernels/pointwise/pointwise.h): one pass reads 16-bit data,
// computes in FP32, and writes at the exponent that follows from the operands' scales; the pass's own sums say whether
// that was the right one.
#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/kernels/pointwise/pointwise.h"

namespace plimsoll::autoscale {

// value = function(a's data * a_factor, b's data * b_factor) * 2^outside.
struct PointwiseCall {
  kernels::Function function;
  const ScaledTensorImpl* a = nullptr;
  const ScaledTensorImpl* b = nullptr;  // nullptr: the number b_factor, or nothing
  double a_factor = 1, b_factor = 1;
  int32_t outside = 0;
  int32_t exponent = 0;                          // that the result is expected to need
  int64_t CallCounts::*how = &CallCounts::wide;  // torch, too, computes sums and products of 16 bits in FP32
};

// Nothing where the pass cannot do the call.
using MakePointwiseCall = std::optional<PointwiseCall>(const Plan&, const torch::jit::Stack&);
MakePointwiseCall product_call, sum_call, difference_call, reverse_difference_call;
MakePointwiseCall tanh_call, sigmoid_call, silu_call, gelu_call;
MakePointwiseCall tanh_gradient_call, sigmoid_gradient_call, silu_gradient_call, gelu_gradient_call;

// False, and nothing is done, where the operands do not lie alike in 16 bits, where something is not finite or a mask,
// and for other policies than autoscale.
bool try_pointwise(MakePointwiseCall* make, const Plan& plan, torch::jit::Stack& stack);

template <MakePointwiseCall kMake, Kernel kOtherwise = execute>
void run_pointwise(const Plan& plan, torch::jit::Stack& stack) {
  if (!try_pointwise(kMake, plan, stack)) kOtherwise(plan, stack);
}

}  // namespace plimsoll::autoscale
