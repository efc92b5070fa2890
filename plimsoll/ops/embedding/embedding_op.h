// torch.ops.plimsoll.embedding*: schemas, kernels for CPUs and CUDA devices, for Meta, and calls through the dispatcher.
#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace plimsoll::ops {

void define_embedding(torch::Library& library);
void register_embedding(torch::Library& library);
void register_embedding_meta(torch::Library& library);

namespace dispatch {

at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& token_weight,
                             const std::optional<at::Tensor>& position_weight, int64_t first_position,
                             at::ScalarType dtype);

// {token_grad [vocabulary, dim], position_grad [positions, dim]} in dtype.
std::tuple<at::Tensor, at::Tensor> embedding_backward(const at::Tensor& grad, const at::Tensor& tokens,
                                                      int64_t vocabulary, int64_t positions, int64_t first_position,
                                                      at::ScalarType dtype);

}  // namespace dispatch
}  // namespace plimsoll::ops
