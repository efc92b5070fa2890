// Operators that only move data: views, copies into tensors, other dtypes, tensors of zeros and ones.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Any operator whose result is a view of its first argument.
void run_view(const Plan& plan, torch::jit::Stack& stack);
// One that makes a view of its first argument in place.
void run_view_in_place(const Plan& plan, torch::jit::Stack& stack);

// view.dtype: an error.
void refuse_view_of_bits(const Plan& plan, torch::jit::Stack& stack);

// With what rounding cut off a parameter, which a view of it does not have.
void clone(const Plan& plan, torch::jit::Stack& stack);
void copy_into(const Plan& plan, torch::jit::Stack& stack);
// The value of `source` goes into `target` in the dtype of the target; one of them is scaled. Called below autoscale.
void copy_value(const at::Tensor& target, const at::Tensor& source);
void fill(const Plan& plan, torch::jit::Stack& stack);
void zero(const Plan& plan, torch::jit::Stack& stack);
// Whether a call asks for what only a plain tensor can be: one on another device, or of another layout.
bool asks_for_plain(const Plan& plan, const torch::jit::Stack& stack);
// To a dtype that is narrower than FP32 the value is rounded as torch rounds it.
void to_dtype(const Plan& plan, torch::jit::Stack& stack);
// Zeros like a parameter are an optimizer's state, which stays in FP32.
void zeros_like(const Plan& plan, torch::jit::Stack& stack);
void ones_like(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
