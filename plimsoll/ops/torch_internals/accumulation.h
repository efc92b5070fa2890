// The addition of gradients to a parameter's .grad. Python has Tensor.register_post_accumulate_grad_hook; C++ has only the
// function behind it, which keeps one hook for a tensor. Declared alike in torch 2.11 and 2.13.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>

#include "plimsoll/ops/torch_internals/node_pointer.h"

namespace plimsoll::ops {

// Called after each addition to parameter.grad, in the place of the hook before. nullptr: none.
void hook_accumulation(const at::Tensor& parameter, std::function<void()> hook);
bool has_accumulation_hook(const at::Tensor& parameter);

// The node that adds; nullptr where no graph has reached the parameter.
NodePointer accumulator_of(const at::Tensor& parameter);

}  // namespace plimsoll::ops
