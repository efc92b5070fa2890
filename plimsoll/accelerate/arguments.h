// Arguments of a call of torch, and whether our kernels take such tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <utility>

#include "plimsoll/ops/torch_internals/replaced_kernels.h"

namespace plimsoll::acceleration {

// The argument at `place` of a call with so many of them.
inline const c10::IValue& argument(const ops::CallStack& stack, size_t arguments, size_t place) {
  return stack[stack.size() - arguments + place];
}
inline const at::Tensor& tensor(const ops::CallStack& stack, size_t arguments, size_t place) {
  return argument(stack, arguments, place).toTensor();
}

// nullopt for None, and for the undefined tensor in its place that autograd passes to backward.
inline std::optional<at::Tensor> optional_tensor(const ops::CallStack& stack, size_t arguments, size_t place) {
  const c10::IValue& value = argument(stack, arguments, place);
  return value.isTensor() && value.toTensor().defined() ? std::optional(value.toTensor()) : std::nullopt;
}

// Takes the arguments off the stack and puts results there.
template <class... Results>
void replace_arguments(ops::CallStack& stack, size_t arguments, Results... results) {
  torch::jit::drop(stack, arguments);
  (stack.emplace_back(std::move(results)), ...);
}

// A dense tensor on the CPU of fp32, bf16 or fp16.
bool has_values(const at::Tensor& x);

template <class... Tensors>
bool of_one_kind(const at::Tensor& first, const Tensors&... others) {
  return has_values(first) && ((has_values(others) && others.scalar_type() == first.scalar_type()) && ...);
}

// Whether `shape`, the sizes of what is normalised together, are the last dimension of x alone, of which there is something.
bool is_last_dimension(const c10::IValue& shape, const at::Tensor& x);

// A tensor of the caller's with these sizes, contiguous: torch would write it as it is.
bool is_writable(const at::Tensor& out, at::IntArrayRef sizes);

}  // namespace plimsoll::acceleration
