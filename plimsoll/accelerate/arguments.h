// Arguments of a call of torch, and whether our kernels take such tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/torch_internals/replaced_kernels.h"

namespace plimsoll::acceleration {

// The argument at `place` of a call with so many of them.
inline const c10::IValue& argument(const ops::CallStack& stack, size_t arguments, size_t place) {
  return stack[stack.size() - arguments + place];
}
inline const at::Tensor& tensor(const ops::CallStack& stack, size_t arguments, size_t place) {
  return argument(stack, arguments, place).toTensor();
}

// Takes the arguments off the stack and puts a result there.
void replace_arguments(ops::CallStack& stack, size_t arguments, at::Tensor result);

// A dense tensor on the CPU of fp32, bf16 or fp16.
bool has_values(const at::Tensor& x);

template <class... Tensors>
bool of_one_kind(const at::Tensor& first, const Tensors&... others) {
  return has_values(first) && ((has_values(others) && others.scalar_type() == first.scalar_type()) && ...);
}

// A tensor of the caller's with these sizes, contiguous: torch would write it as it is.
bool is_writable(const at::Tensor& out, at::IntArrayRef sizes);

}  // namespace plimsoll::acceleration
