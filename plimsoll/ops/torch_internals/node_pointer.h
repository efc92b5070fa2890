// The pointer that keeps a node of autograd's graph alive. torch changed its type: std::shared_ptr in 2.11,
// c10::intrusive_ptr in 2.13.
#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/function.h>

#include <type_traits>
#include <utility>

namespace plimsoll::ops {

using NodePointer = std::decay_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

}  // namespace plimsoll::ops
