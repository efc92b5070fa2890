// torch.ops.plimsoll.cross_entropy* and linear_cross_entropy*: schemas, kernels for CPUs and CUDA devices, for Meta,
// and calls through the dispatcher.
#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "plimsoll/ops/loss/cross_entropy.h"

namespace plimsoll::ops {

void define_loss(torch::Library& library);
void register_loss(torch::Library& library);
void register_loss_meta(torch::Library& library);

namespace dispatch {

// {loss, gradient of the logits, empty unless wanted}. With kNone the gradient is that of the sum.
std::tuple<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits, const at::Tensor& targets,
                                                         const CrossEntropyOptions& options, bool wants_grad);

// grad: of the loss, of its shape.
at::Tensor cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyOptions& options);

// {loss, gradients of hidden and weight, empty unless wanted}.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const LinearCrossEntropyOptions& options, at::ScalarType dtype, std::array<bool, 2> wants_grad);

}  // namespace dispatch
}  // namespace plimsoll::ops
